//! The reply cache of one session channel, which makes every request execute exactly once (RFC 8881 §2.10.6.1).

use crate::state::{Principal, Result};
use bytes::Bytes;
use wire::nfs4::nfsstat4::*;

/// Replies of up to this many bytes are cached even if the client did not ask for caching. Caching small replies costs
/// little memory and avoids RETRY_UNCACHED_REP. The reply to a SEQUENCE alone is below this size.
const SMALL_REPLY: usize = 512;

/// Number of bytes of a request that the fingerprint covers.
const FINGERPRINT_BYTES: usize = 256;

/// A digest of a request, which distinguishes a retry of the request from another request with the same slot and
/// sequence number (§2.10.6.1.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fingerprint {
    principal: Principal,
    digest: u64,
}

impl Fingerprint {
    /// Computes the fingerprint of a request from its sender, and from the length and the first bytes of the operations
    /// after SEQUENCE.
    ///
    /// SEQUENCE itself does not count, because a client encodes a retry again and `sa_highest_slotid` may have changed.
    /// Only a prefix counts, because payloads are long.
    pub fn new(principal: Principal, operations: &[u8]) -> Self {
        let mut digest = 0xcbf2_9ce4_8422_2325_u64 ^ operations.len() as u64;
        for byte in operations.iter().take(FINGERPRINT_BYTES) {
            digest = (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Fingerprint { principal, digest }
    }
}

/// What the receiver must do with a request whose SEQUENCE or CB_SEQUENCE is valid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The request is new. Execute the request, then call [`ReplyCache::finish`].
    New,
    /// The request is a retry. Send these bytes, the cached reply.
    Replay(Bytes),
    /// The request is a retry whose reply was not cached. Reply with the result of SEQUENCE, then RETRY_UNCACHED_REP
    /// for the next operation.
    Uncached,
}

#[derive(Clone, Debug)]
enum Reply {
    /// The slot has executed no request yet.
    None,
    /// The receiver is executing the slot's last request.
    InProgress { cache: bool },
    /// The slot's last request is complete, and its reply is cached.
    Kept(Bytes),
    /// The slot's last request is complete, and its reply is not cached.
    Dropped,
}

#[derive(Clone, Debug)]
struct Slot {
    sequence: u32,
    request: Option<Fingerprint>,
    reply: Reply,
}

impl Slot {
    const FRESH: Slot = Slot { sequence: 0, request: None, reply: Reply::None };
}

/// The slots of one channel at the receiver of the requests, with their cached replies.
#[derive(Clone, Debug)]
pub struct ReplyCache {
    slots: Vec<Slot>,
    target: u32,
    max_cached: u32,
}

impl ReplyCache {
    /// Creates `count` slots, at least one. Each slot caches a reply of at most `max_cached` bytes.
    pub fn new(count: u32, max_cached: u32) -> Self {
        let count = count.max(1);
        ReplyCache { slots: vec![Slot::FRESH; count as usize], target: count - 1, max_cached }
    }

    /// Returns the highest slot id that the receiver accepts (`sr_highest_slotid`).
    pub fn highest(&self) -> u32 {
        self.slots.len() as u32 - 1
    }

    /// Returns the highest slot id that the sender should use (`sr_target_highest_slotid`).
    pub fn target(&self) -> u32 {
        self.target
    }

    /// Asks the sender to use only slots up to `target`. The cache removes the higher slots when later requests show
    /// that the sender has stopped using these slots.
    pub fn set_target(&mut self, target: u32) {
        self.target = target;
        if target > self.highest() {
            self.slots.resize(target as usize + 1, Slot::FRESH);
        }
    }

    /// Returns the number of bytes of cached replies.
    pub fn cached_bytes(&self) -> usize {
        self.slots.iter().map(|s| if let Reply::Kept(bytes) = &s.reply { bytes.len() } else { 0 }).sum()
    }

    /// Returns the number of requests in execution.
    pub fn in_progress(&self) -> usize {
        self.slots.iter().filter(|s| matches!(s.reply, Reply::InProgress { .. })).count()
    }

    /// Checks a request without changing its slot.
    ///
    /// # Errors
    /// BADSLOT, BAD_HIGH_SLOT, SEQ_MISORDERED, SEQ_FALSE_RETRY, DELAY (the receiver is executing the slot's last
    /// request).
    pub fn judge(&self, slot: u32, sequence: u32, highest: u32, request: Fingerprint) -> Result<Verdict> {
        let entry = self.slots.get(slot as usize).ok_or(NFS4ERR_BADSLOT)?;
        if highest > self.highest() {
            return Err(NFS4ERR_BAD_HIGH_SLOT);
        }
        if sequence == entry.sequence.wrapping_add(1) {
            return match entry.reply {
                // The server still executes a request that the client has abandoned, and the client uses its slot for
                // a new request. So the client must send the new request again after the abandoned request is
                // complete.
                Reply::InProgress { .. } => Err(NFS4ERR_DELAY),
                _ => Ok(Verdict::New),
            };
        }
        if sequence != entry.sequence {
            return Err(NFS4ERR_SEQ_MISORDERED);
        }
        if entry.request.is_some_and(|r| r != request) {
            return Err(NFS4ERR_SEQ_FALSE_RETRY);
        }
        match &entry.reply {
            Reply::None => Err(NFS4ERR_SEQ_MISORDERED),
            Reply::InProgress { .. } => Err(NFS4ERR_DELAY),
            #[cfg(feature = "planted")]
            Reply::Kept(_) if types::planted::is_planted(types::planted::Planted::ReplyCache) => Ok(Verdict::Uncached),
            Reply::Kept(bytes) => Ok(Verdict::Replay(bytes.clone())),
            Reply::Dropped => Ok(Verdict::Uncached),
        }
    }

    /// Checks a request and, if the request is new, occupies its slot.
    ///
    /// # Errors
    /// The errors of [`ReplyCache::judge`]; an error leaves the slot unchanged (§2.10.6.1.2).
    pub fn begin(
        &mut self,
        slot: u32,
        sequence: u32,
        highest: u32,
        cache: bool,
        request: Fingerprint,
    ) -> Result<Verdict> {
        let verdict = self.judge(slot, sequence, highest, request)?;
        if verdict == Verdict::New {
            self.slots[slot as usize] = Slot { sequence, request: Some(request), reply: Reply::InProgress { cache } };
            self.retire(highest);
        }
        Ok(verdict)
    }

    /// Ends a request that [`ReplyCache::begin`] accepted, and caches `reply` unless it is too long for the cache. If
    /// `reply` is `None`, caches nothing.
    ///
    /// Returns whether the reply is cached. Does nothing if the slot already has a later request.
    pub fn finish(&mut self, slot: u32, sequence: u32, reply: Option<&[u8]>) -> bool {
        let Some(entry) = self.slots.get_mut(slot as usize) else { return false };
        let Reply::InProgress { cache } = entry.reply else { return false };
        if entry.sequence != sequence {
            return false;
        }
        let limit = if cache { SMALL_REPLY.max(self.max_cached as usize) } else { SMALL_REPLY };
        entry.reply = match reply {
            Some(bytes) if bytes.len() <= limit => Reply::Kept(Bytes::copy_from_slice(bytes)),
            _ => Reply::Dropped,
        };
        matches!(entry.reply, Reply::Kept(_))
    }

    /// Removes the slots above the target, once the sender has no more requests on these slots (§2.10.6.1).
    fn retire(&mut self, highest: u32) {
        if highest > self.target {
            return;
        }
        let busy = self.slots.iter().rposition(|s| matches!(s.reply, Reply::InProgress { .. }));
        let keep = (self.target as usize).max(busy.unwrap_or(0));
        self.slots.truncate(keep + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_wrap_to_zero() {
        let mut table = ReplyCache::new(1, 100);
        let request = Fingerprint::new(Principal::None, b"x");
        table.slots[0] = Slot { sequence: u32::MAX, request: None, reply: Reply::Dropped };
        assert_eq!(table.begin(0, 1, 0, true, request), Err(NFS4ERR_SEQ_MISORDERED));
        assert_eq!(table.begin(0, 0, 0, true, request), Ok(Verdict::New));
        table.finish(0, 0, Some(b"reply"));
        assert_eq!(table.begin(0, u32::MAX, 0, true, request), Err(NFS4ERR_SEQ_MISORDERED));
        assert_eq!(table.begin(0, 0, 0, true, request), Ok(Verdict::Replay("reply".into())));
        assert_eq!(table.begin(0, 1, 0, true, request), Ok(Verdict::New));
    }
}
