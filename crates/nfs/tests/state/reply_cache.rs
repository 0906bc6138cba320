//! Tests of the reply cache: every short history of its slots against a model, and each rule by itself.

use crate::helpers::*;
use nfs::state::Result;
use nfs::state::reply_cache::{Fingerprint, ReplyCache, Verdict};
use std::collections::HashMap;
use wire::nfs4::nfsstat4::*;

const MAX_CACHED: u32 = 2000;

fn request(text: &str) -> Fingerprint {
    Fingerprint::new(ALICE, text.as_bytes())
}

/// Returns the test's reply to a request: 4 bytes with slot and sequence number, then `len` zeros.
fn reply(slot: u32, sequence: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![slot as u8, sequence as u8, 1, 2];
    bytes.resize(4 + len, 0);
    bytes
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Begin {
        slot: u32,
        sequence: u32,
        cache: bool,
        text: &'static str,
    },
    /// The newest request of a slot completes with a reply of 4 + `len` bytes.
    Finish {
        slot: u32,
        len: usize,
    },
}

/// A slot of the model (§2.10.6.1): its last request and the cached reply.
#[derive(Clone, Default)]
struct Plain {
    last: u32,
    text: &'static str,
    cache: bool,
    running: bool,
    /// The reply to the last request of the slot; `None` while the cache does not hold this reply.
    kept: Option<Vec<u8>>,
}

#[derive(Clone)]
struct World {
    table: ReplyCache,
    slots: HashMap<u32, Plain>,
}

impl World {
    fn expected(&self, slot: u32, sequence: u32, text: &str) -> Result<Verdict> {
        let Some(plain) = self.slots.get(&slot) else { return Err(NFS4ERR_BADSLOT) };
        let never_used = plain.last == 0;
        match sequence.checked_sub(plain.last) {
            Some(0) if never_used => Err(NFS4ERR_SEQ_MISORDERED),
            Some(0) if plain.text != text => Err(NFS4ERR_SEQ_FALSE_RETRY),
            Some(0) if plain.running => Err(NFS4ERR_DELAY),
            Some(0) => Ok(plain.kept.clone().map_or(Verdict::Uncached, |k| Verdict::Replay(k.into()))),
            Some(1) if plain.running => Err(NFS4ERR_DELAY),
            Some(1) => Ok(Verdict::New),
            _ => Err(NFS4ERR_SEQ_MISORDERED),
        }
    }

    fn apply(&mut self, call: Call) {
        match call {
            Call::Begin { slot, sequence, cache, text } => {
                let expected = self.expected(slot, sequence, text);
                assert_eq!(self.table.begin(slot, sequence, slot.min(1), cache, request(text)), expected);
                if expected == Ok(Verdict::New) {
                    self.slots.insert(slot, Plain { last: sequence, text, cache, running: true, kept: None });
                }
            }
            Call::Finish { slot, len } => {
                let Some(plain) = self.slots.get_mut(&slot) else { return };
                let bytes = reply(slot, plain.last, len);
                let keep = plain.running && (bytes.len() <= 512 || plain.cache && bytes.len() <= MAX_CACHED as usize);
                assert_eq!(self.table.finish(slot, plain.last, Some(&bytes)), keep);
                if plain.running {
                    plain.running = false;
                    plain.kept = keep.then_some(bytes);
                }
            }
        }
        let kept: usize = self.slots.values().filter_map(|p| p.kept.as_ref()).map(Vec::len).sum();
        assert_eq!(self.table.cached_bytes(), kept);
        assert_eq!(self.table.in_progress(), self.slots.values().filter(|p| p.running).count());
    }
}

fn world() -> World {
    let slots = [(0, Plain::default()), (1, Plain::default())].into();
    World { table: ReplyCache::new(2, MAX_CACHED), slots }
}

#[test]
fn two_slots_match_the_model_in_every_short_history() {
    let mut calls = Vec::new();
    for slot in [0, 1] {
        for sequence in 0..4 {
            calls.push(Call::Begin { slot, sequence, cache: true, text: "same" });
        }
        calls.push(Call::Finish { slot, len: 600 });
    }
    calls.push(Call::Begin { slot: 2, sequence: 1, cache: true, text: "same" });
    walk(&world(), &calls, 5, World::apply);
}

#[test]
fn one_slot_matches_the_model_for_all_reply_sizes_and_requests() {
    let mut calls = Vec::new();
    for sequence in 0..4 {
        calls.push(Call::Begin { slot: 0, sequence, cache: false, text: "one" });
    }
    calls.push(Call::Begin { slot: 0, sequence: 1, cache: true, text: "other" });
    calls.push(Call::Begin { slot: 0, sequence: 2, cache: true, text: "other" });
    for len in [0, 508, 509, 1996, 1997] {
        calls.push(Call::Finish { slot: 0, len });
    }
    walk(&world(), &calls, 5, World::apply);
}

#[test]
fn a_retry_by_another_principal_is_a_false_retry() {
    let mut table = ReplyCache::new(1, MAX_CACHED);
    let theirs = Fingerprint::new(BOB, b"same");
    assert_eq!(table.begin(0, 1, 0, true, request("same")), Ok(Verdict::New));
    assert_eq!(table.begin(0, 1, 0, true, theirs), Err(NFS4ERR_SEQ_FALSE_RETRY));
    table.finish(0, 1, Some(b"reply"));
    assert_eq!(table.begin(0, 1, 0, true, theirs), Err(NFS4ERR_SEQ_FALSE_RETRY));
    assert_eq!(table.begin(0, 1, 0, true, request("same")), Ok(Verdict::Replay("reply".into())));
    assert_eq!(table.begin(0, 2, 0, true, theirs), Ok(Verdict::New));
}

#[test]
fn a_request_without_a_reply_is_not_executed_again() {
    let mut table = ReplyCache::new(1, MAX_CACHED);
    assert_eq!(table.begin(0, 1, 0, true, request("a")), Ok(Verdict::New));
    assert!(!table.finish(0, 1, None));
    assert_eq!(table.begin(0, 1, 0, true, request("a")), Ok(Verdict::Uncached));
    assert!(!table.finish(0, 1, Some(b"late")), "a finished request is finished");
    assert!(!table.finish(9, 1, Some(b"no such slot")));
}

#[test]
fn slots_above_the_target_are_removed_once_the_client_obeys() {
    let mut table = ReplyCache::new(4, MAX_CACHED);
    table.set_target(1);
    assert_eq!((table.highest(), table.target()), (3, 1));
    assert_eq!(table.begin(3, 1, 3, true, request("a")), Ok(Verdict::New), "sent before it knew");
    assert_eq!(table.begin(0, 1, 1, true, request("b")), Ok(Verdict::New));
    assert_eq!(table.highest(), 3, "slot 3 is in use");
    table.finish(3, 1, Some(b"a"));
    table.finish(0, 1, Some(b"b"));
    assert_eq!(table.begin(3, 1, 3, true, request("a")), Ok(Verdict::Replay("a".into())));
    assert_eq!(table.begin(0, 2, 0, true, request("b")), Ok(Verdict::New));
    assert_eq!(table.highest(), 1);
    assert_eq!(table.begin(2, 1, 1, true, request("c")), Err(NFS4ERR_BADSLOT));
    assert_eq!(table.begin(1, 1, 2, true, request("c")), Err(NFS4ERR_BAD_HIGH_SLOT));
    table.set_target(2);
    assert_eq!(table.begin(2, 1, 2, true, request("c")), Ok(Verdict::New));
}

#[test]
fn fingerprints_differ_for_other_principals_beginnings_and_lengths() {
    let long = vec![7; 100_000];
    assert_eq!(Fingerprint::new(ALICE, &long), Fingerprint::new(ALICE, &long.clone()));
    assert_ne!(Fingerprint::new(ALICE, &long), Fingerprint::new(ALICE, &long[1..]));
    assert_ne!(Fingerprint::new(ALICE, &long), Fingerprint::new(BOB, &long));
    let mut other = long.clone();
    other[100] = 8;
    assert_ne!(Fingerprint::new(ALICE, &long), Fingerprint::new(ALICE, &other));
}
