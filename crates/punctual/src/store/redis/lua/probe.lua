-- Rings a bell that only the caller listens to, for `doctor`: is a ring from a script heard?
--
-- KEYS[1]: the bell.  ARGV[1]: how long an unheard ring stays, in ms.
redis.call('ZADD', KEYS[1], 0, 'r')
redis.call('PEXPIRE', KEYS[1], ARGV[1])
