#!lua
-- Make a bucket ours and read it.
-- KEYS: epoch, lease, values, log.  ARGV: node, its url, lease in ms (0: take it from anybody), and
-- perhaps a key and the value that it must have.
if ARGV[4] and redis.call('HGET', KEYS[3], ARGV[4]) ~= ARGV[5] then return {'changed'} end
local lease = redis.call('HMGET', KEYS[2], 'node', 'url')
if ARGV[3] ~= '0' and lease[1] and lease[1] ~= ARGV[1] then
  return {'elsewhere', lease[1], lease[2] or ''}
end
-- The clock as a floor: epochs rise even if a failover lost the counter.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local epoch = math.max(tonumber(redis.call('GET', KEYS[1]) or '0') + 1, now)
local spelt = string.format('%.0f', epoch)
redis.call('SET', KEYS[1], spelt)
if ARGV[3] ~= '0' then
  redis.call('HSET', KEYS[2], 'node', ARGV[1], 'url', ARGV[2], 'epoch', spelt)
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
return {'held', spelt, redis.call('HGETALL', KEYS[3]), redis.call('XRANGE', KEYS[4], '-', '+')}
