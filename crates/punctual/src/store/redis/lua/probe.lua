-- Notifies a key that only the caller listens to. `doctor` checks with it that a notification from a script arrives.
--
-- KEYS[1]: the notification key.
-- ARGV[1]: how long a notification that nobody received stays, in ms.
redis.call('ZADD', KEYS[1], 0, 'r')
redis.call('PEXPIRE', KEYS[1], ARGV[1])
