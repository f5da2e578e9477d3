#!lua
-- Keep a bucket that nobody holds for a node, no longer than that node is known to live.
-- KEYS: lease, the node's card.  ARGV: node, its url.  Returns who has it now, or nil if that node
-- does not live.
local lease = redis.call('HMGET', KEYS[1], 'node', 'url')
if lease[1] then return {lease[1], lease[2] or ''} end
local life = redis.call('PTTL', KEYS[2])
if life <= 0 then return false end
redis.call('HSET', KEYS[1], 'node', ARGV[1], 'url', ARGV[2])
redis.call('PEXPIRE', KEYS[1], life)
return {ARGV[1], ARGV[2]}
