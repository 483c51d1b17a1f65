"""State of one account in Redis, and the one script that changes it.

An *account* is the unit that some limits hold for (a tenant). Its state is a single hash, so that one script
call, atomic and alone in its slot of a cluster, does all that a replica wants at a time:

    report uses -> give back units -> ask for the requests that wait -> lease a little more

Rates are counted in a sliding window of 60 s, cut into slots of half a second. A use belongs to the slot in
which the request was admitted and counts until all of its slot is older than 60 s, so no 60 s ever see more
than the limit, and a limit that is always asked for gives 60 / 60.5 of it at least (0.8 % less). A token
bucket would let twice the limit through in a minute that follows an idle one; a fixed window would around
its edge.

    limit = used in the window + leased to replicas (tokens in flight included) + left

A lease is *held* until it is used or given back. A writer that is not heard of for its time to live has died:
its part of a rate counts as used when it expired, since it may have been; its tokens in flight ended with it.

    a           sums of all slots and holders, and when a holder may have died next
    s{slot}     requests and tokens used in a slot
    h{writer}   batch, expiry, units held of the three limits, 1 while it lives

A call reads and writes the fields that it changes: all slots only of a replica that tells its whole window,
all holders only when one may have died.

Uses are told in numbered batches, each again until it is acknowledged, and counted once. A number that does
not follow the one before means that Redis has lost something: then the replica tells its whole window
(`whole`), which errs on the side of less, never of more. The held units are told as they are, not as a
change.
"""

import msgspec

from router.shared.connection import Command
from router.shared.failures import RedisRefused

SLOT_US = 500_000
SLOTS = 120
"""Full slots in a window; the one that has just begun comes on top."""

WINDOW_US = SLOT_US * SLOTS

STEP_US = 5_000_000
"""A clock that runs back by more is another clock; counts by the old one mean nothing."""

SHARES = 4
"""Units leased ahead are this fraction of the rest for each replica: the less is left, the
smaller, and nothing ahead of need in the end."""

PLENTY = 1 << 52
"""Rest of a limit that does not exist."""

READ_AHEAD = 15
"""Slots read along with one, where the oldest use is looked for."""


class LeaseCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Uses and wants of a replica at one account.

    Attributes:
        writer: Name of the caller; another one in each life of a replica's account.
        batch: Number of this batch of uses, one more than the one before.
        whole: True if the batch holds all uses in the window, told before or not.
        ttl_us: Time for which the holdings below are believed.
        limits: Requests and tokens per minute, tokens in flight; 0 for none.
        held: Units of each that this replica holds: unused leases, and of the third also those in flight.
        wants: Units of each to lease beyond the asks, if there are enough.
        uses: Slot, requests, tokens; negative numbers take back units that were not used after all.
        asks: Tokens of each request that waits, in the order of coming. Each also needs one request.
    """

    writer: str
    batch: int
    whole: bool
    ttl_us: int
    limits: tuple[int, int, int]
    held: tuple[int, int, int]
    wants: tuple[int, int, int]
    uses: tuple[tuple[int, int, int], ...]
    asks: tuple[int, ...]


class LeaseReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Answer to a replica's call.

    Attributes:
        told: False if nothing was done because a batch is missing: tell the whole window.
        verdicts: Per ask: 0 if it was granted, else the number of the limit (1 to 3) that did not allow it.
        leased: Units of each limit that were leased now, granted asks included.
        left: Units of each limit that are neither used nor held; `PLENTY` if there is no limit.
        grows_us: Until the oldest use leaves the window and `left` grows, for requests and tokens; 0 if none.
        retry_us: Until the first ask that was refused might be granted; 0 if all were.
    """

    told: bool
    verdicts: tuple[int, ...] = ()
    leased: tuple[int, int, int] = (0, 0, 0)
    left: tuple[int, int, int] = (0, 0, 0)
    grows_us: tuple[int, int] = (0, 0)
    retry_us: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LeaseReply).decode


def command(script: bytes, key: str, call: LeaseCall) -> Command:
    """The call as a command, for a script that was loaded under that hash."""
    return ("EVALSHA", script, 1, key, _encode(call))


def reply_of(data: bytes) -> LeaseReply:
    """Decode the answer to a command.

    Raises:
        RedisRefused: It makes no sense.
    """
    try:
        return _decode(data)
    except (ValueError, TypeError) as error:
        raise RedisRefused(f"the account in Redis makes no sense: {error}") from error


SCRIPT = f"""#!lua flags=allow-oom
local SLOT, SLOTS, STEP, SHARES, PLENTY = {SLOT_US}, {SLOTS}, {STEP_US}, {SHARES}, {PLENTY}
local KEY, READ_AHEAD = KEYS[1], {READ_AHEAD}
local writer, batch, whole, ttl, limits, mine, wants, uses, asks = unpack(cmsgpack.unpack(ARGV[1]))
local time = redis.call('TIME')
local clock = tonumber(time[1]) * 1000000 + tonumber(time[2])
local seen = math.floor(clock / SLOT)

local function checked(packed, count)
  local numbers = cmsgpack.unpack(packed)
  assert(type(numbers) == 'table')
  for at = 1, count do
    assert(type(numbers[at]) == 'number' and math.abs(numbers[at]) <= 2^53)
  end
  return numbers
end
local function amounts_of(packed)
  local amounts = checked(packed, 2)
  assert(amounts[1] >= 0 and amounts[2] >= 0)
  return amounts
end

-- account: last change; requests, tokens used; oldest slot kept; oldest slots with requests, tokens used;
-- held of the three limits; holders that live; when to look at all holders
local function answer(account, own, current)
  local now = math.max(clock, account[1])
  local slot = math.floor(now / SLOT)
  local first = slot - SLOTS
  local used, kept, oldest = {{account[2], account[3]}}, account[4], {{account[5], account[6]}}
  local look_at = account[11]
  local read, changed, gone, sure = {{[seen] = current}}, {{}}, {{}}, {{true, true}}

  local function fetch(from, to)
    local fields = {{}}
    for at = from, to do fields[#fields + 1] = 's' .. at end
    for number, packed in ipairs(redis.call('HMGET', KEY, unpack(fields))) do
      local at = from + number - 1
      read[at] = read[at] or packed and amounts_of(packed) or {{0, 0}}
    end
  end
  local function slot_at(at)
    if not read[at] then fetch(at, at) end
    return read[at]
  end
  local function use(kind, at, amount)
    if at < first or amount == 0 then return end
    at = math.min(at, slot)
    local amounts = slot_at(at)
    local after = math.max(0, amounts[kind] + amount)
    if after == 0 then
      if at == oldest[kind] then sure[kind] = false end
    elseif at <= oldest[kind] or used[kind] == 0 then
      oldest[kind], sure[kind] = at, true
    end
    used[kind] = used[kind] + after - amounts[kind]
    amounts[kind] = after
    changed[at] = true
    kept = math.min(kept, at)
  end

  local last = math.floor(account[1] / SLOT)
  assert(kept % 1 == 0 and kept <= last + 1 and last - kept <= SLOTS)
  assert(used[1] >= 0 and used[2] >= 0 and oldest[1] % 1 == 0 and oldest[2] % 1 == 0)
  if kept < first then
    fetch(kept, math.min(last, first - 1))
    for at = kept, math.min(last, first - 1) do
      used[1], used[2] = used[1] - read[at][1], used[2] - read[at][2]
      gone[#gone + 1] = 's' .. at
    end
    kept = first
  end
  for kind = 1, 2 do
    if oldest[kind] < kept then oldest[kind], sure[kind] = kept, false end
  end

  local known = own and own[1] or 0
  if batch > known then
    if batch > known + 1 and not whole then return cmsgpack.pack({{false}}) end
    if #uses > 1 then fetch(math.max(first, slot - SLOTS), slot) end
    for _, told in ipairs(uses) do
      use(1, told[1], told[2])
      use(2, told[1], told[3])
    end
  end

  local active, held = account[10] + 1, {{mine[1], mine[2], mine[3]}}
  for kind = 1, 3 do held[kind] = held[kind] + account[6 + kind] - (own and own[2 + kind] or 0) end
  if own and own[6] == 1 then active = active - 1 end
  if look_at < now then
    look_at = PLENTY
    local fields = redis.call('HGETALL', KEY)
    for number = 1, #fields, 2 do
      local name = fields[number]
      if string.sub(name, 1, 1) == 'h' and name ~= 'h' .. writer then
        local holder = checked(fields[number + 1], 6)
        if holder[6] == 1 and holder[2] < now then
          local expired = math.floor(holder[2] / SLOT)
          use(1, expired, holder[3])
          use(2, expired, holder[4])
          for kind = 1, 3 do held[kind] = held[kind] - holder[2 + kind] end
          active = active - 1
          redis.call('HSET', KEY, name, cmsgpack.pack({{holder[1], holder[2], 0, 0, 0, 0}}))
          holder[6] = 0
        end
        local look = holder[6] == 1 and holder[2] or holder[2] + SLOT * SLOTS
        if look < now then gone[#gone + 1] = name else look_at = math.min(look_at, look) end
      end
    end
  end

  local function left_of(kind)
    if limits[kind] == 0 then return PLENTY end
    return limits[kind] - (used[kind] or 0) - held[kind]
  end
  local left, leased = {{left_of(1), left_of(2), left_of(3)}}, {{0, 0, 0}}
  local function lease(kind, amount)
    if limits[kind] > 0 then
      leased[kind] = leased[kind] + amount
      left[kind] = left[kind] - amount
    end
  end

  local verdicts, lacking, lacked = {{}}, 0, 0
  for number, tokens in ipairs(asks) do
    local lacks = left[1] < 1 and 1 or left[2] < tokens and 2 or left[3] < tokens and 3 or 0
    verdicts[number] = lacks
    if lacks == 0 then
      lease(1, 1)
      lease(2, tokens)
      lease(3, tokens)
    elseif lacking == 0 then
      lacking, lacked = lacks, lacks == 1 and 1 or tokens
    end
  end
  if lacking == 0 then
    for kind = 1, 3 do
      local ahead = math.min(wants[kind], math.floor(left[kind] / (SHARES * active)))
      if ahead > 0 then lease(kind, ahead) end
    end
  end

  local function read_ahead(at)
    if not read[at] then fetch(at, math.min(at + READ_AHEAD, slot)) end
    return read[at]
  end
  local grows = {{0, 0}}
  for kind = 1, 2 do
    local at = oldest[kind]
    if not sure[kind] then
      while at <= slot and used[kind] > 0 and read_ahead(at)[kind] == 0 do at = at + 1 end
      oldest[kind] = math.min(at, slot)
    end
    if used[kind] > 0 then grows[kind] = (oldest[kind] + SLOTS + 1) * SLOT - now end
  end
  local retry = lacking > 0 and SLOT or 0
  if lacking == 1 or lacking == 2 then
    local freed = left[lacking]
    for at = oldest[lacking], slot do
      freed = freed + read_ahead(at)[lacking]
      if freed >= lacked then
        retry = (at + SLOTS + 1) * SLOT - now
        break
      end
    end
  end

  local set = {{}}
  for at in pairs(changed) do
    if read[at][1] + read[at][2] > 0 then
      set[#set + 1] = 's' .. at
      set[#set + 1] = cmsgpack.pack(read[at])
    else
      gone[#gone + 1] = 's' .. at
    end
  end
  for kind = 1, 3 do
    mine[kind] = mine[kind] + leased[kind]
    held[kind] = held[kind] + leased[kind]
  end
  set[#set + 1] = 'h' .. writer
  set[#set + 1] = cmsgpack.pack({{math.max(batch, known), now + ttl, mine[1], mine[2], mine[3], 1}})
  set[#set + 1] = 'a'
  set[#set + 1] = cmsgpack.pack({{
    now, used[1], used[2], kept, oldest[1], oldest[2], held[1], held[2], held[3], active,
    math.min(look_at, now + ttl)
  }})
  if #gone > 0 then redis.call('HDEL', KEY, unpack(gone)) end
  redis.call('HSET', KEY, unpack(set))
  redis.call('PEXPIRE', KEY, math.floor((SLOT * (SLOTS + 2) + ttl) / 1000))
  return cmsgpack.pack({{true, verdicts, leased, left, grows, retry}})
end

-- a value that is no account begins again
local raw = redis.pcall('HMGET', KEY, 'a', 'h' .. writer, 's' .. seen)
local sound, reply = false, nil
if not raw.err and raw[1] then
  sound, reply = pcall(function()
    local account = checked(raw[1], 11)
    assert(account[1] <= clock + STEP)
    return answer(account, raw[2] and checked(raw[2], 6), raw[3] and amounts_of(raw[3]) or {{0, 0}})
  end)
end
if not sound then
  redis.call('DEL', KEY)
  reply = answer({{clock, 0, 0, seen, seen, seen, 0, 0, 0, 0, PLENTY}}, nil, {{0, 0}})
end
return reply
"""
