-- A step of the fast paths: the row of the shard with a mark.
call('HSET', $STATE, 'turn', pack('>I7I7I7I7I4I2', now + 1, grace, fence, wide, epoch, format) .. silences)
