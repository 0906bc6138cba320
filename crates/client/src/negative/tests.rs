//! Tests of the negative-lookup cache: a name that the cache reports as missing does not exist, in whatever order
//! requests are sent, executed and answered.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const DIR: FileId = FileId(7);
const NAMES_USED: u8 = 4;
const MISSES: u32 = 4;

fn handle() -> Bytes {
    Bytes::from_static(b"handle")
}

fn at(secs: i64) -> Timestamp {
    Timestamp { secs, nanos: 0 }
}

fn stateid(number: u8) -> stateid4 {
    stateid4 { seqid: 1, other: [number; 12] }
}

fn gone(number: u8) -> DelegationToReturn {
    DelegationToReturn { handle: handle(), stateid: stateid(number) }
}

/// Records failed lookups until the cache starts a task to read all names; returns the number of the task.
fn miss(negative: &mut Negative<u8>, epoch: u64, now: Timestamp) -> Option<u64> {
    (0..MISSES).find_map(|_| negative.missed((DIR, &handle()), &0, (epoch, now), MISSES).0)
}

/// Returns a cache that contains exactly these names of the directory, under a delegation.
fn knowing(names: &[&'static str]) -> Negative<u8> {
    let mut negative = Negative::default();
    let number = miss(&mut negative, 1, at(0)).unwrap();
    negative.granted(DIR, number, gone(1), 1).unwrap();
    assert!(negative.read(DIR, number, names.iter().map(|name| Bytes::from_static(name.as_bytes()))));
    assert!(!negative.is_absent(DIR, b"x", &0, 1), "not all names were read yet");
    assert_eq!(negative.finished(DIR, number, true, at(0)), None);
    negative
}

#[test]
fn a_directory_with_many_failed_lookups_is_read_once() {
    let mut negative = Negative::default();
    let mut missed = |secs| negative.missed((DIR, &handle()), &0, (1, at(secs)), MISSES).0.is_some();
    assert!([0, 1, 2, 9, 10, 11].iter().all(|secs| !missed(*secs)), "failed lookups that are far apart");
    assert!(missed(12));
    assert!(!missed(13), "a task requests the delegation already");
    let mut negative = knowing(&["a"]);
    assert!(negative.is_absent(DIR, b"b", &0, 1) && !negative.is_absent(DIR, b"a", &0, 1));
    assert!(!negative.is_absent(DIR, b"b", &0, 2), "another session");
    assert!(!negative.is_absent(FileId(8), b"b", &0, 1));
    assert!(!negative.is_absent(DIR, b"", &0, 1) && !negative.is_absent(DIR, &[b'x'; 256], &0, 1));
    // The cache answers only callers that it knows to have lookup permission in the directory.
    assert!(!negative.is_absent(DIR, b"b", &1, 1));
    negative.missed((DIR, &handle()), &1, (1, at(1)), MISSES);
    assert!(negative.is_absent(DIR, b"b", &1, 1));
    negative.permissions_changed(DIR);
    assert!(!negative.is_absent(DIR, b"b", &0, 1));
}

#[test]
fn a_created_name_possibly_exists_until_its_removal_is_answered() {
    let mut negative = knowing(&[]);
    assert_eq!(negative.makes(DIR, b"a", at(0)), None);
    assert!(!negative.is_absent(DIR, b"a", &0, 1), "the name may exist from before the create is sent");
    assert_eq!(negative.removes(DIR, b"a"), None, "the removal may be executed before the create");
    negative.made(DIR, b"a", true);
    let removal = negative.removes(DIR, b"a").unwrap();
    assert!(!negative.is_absent(DIR, b"a", &0, 1));
    negative.removed(removal);
    assert!(negative.is_absent(DIR, b"a", &0, 1));
    // If the client creates a name again while the removal of the name is in flight, the name may exist. So the cache
    // keeps the name.
    negative.makes(DIR, b"a", at(0));
    negative.made(DIR, b"a", true);
    let removal = negative.removes(DIR, b"a").unwrap();
    negative.makes(DIR, b"a", at(0));
    negative.made(DIR, b"a", true);
    negative.removed(removal);
    assert!(!negative.is_absent(DIR, b"a", &0, 1));
    assert_eq!((negative.names, negative.making.len()), (1, 0));
}

#[test]
fn a_recalled_delegation_is_returned_and_not_requested_again_for_a_while() {
    let mut negative = knowing(&["a"]);
    assert_eq!(negative.lose(&stateid(2), at(5)), None);
    assert_eq!(negative.held(), [stateid(1)]);
    assert_eq!(negative.lose(&stateid(1), at(5)), Some(gone(1)));
    assert!(!negative.is_absent(DIR, b"b", &0, 1) && negative.held().is_empty() && negative.names == 0);
    assert_eq!(miss(&mut negative, 1, at(34)), None);
    assert!(miss(&mut negative, 1, at(35)).is_some());
    // If the task that requested a delegation has failed before the reply grants the delegation, the cache rejects the
    // delegation, and the client must return it.
    let mut negative = Negative::default();
    let number = miss(&mut negative, 1, at(0)).unwrap();
    assert_eq!(negative.finished(DIR, number, false, at(0)), None);
    assert_eq!(negative.granted(DIR, number, gone(3), 1), Err(gone(3)));
    // A delegation from an earlier session is worthless, so the next failed lookup makes the client return it.
    let mut negative = knowing(&["a"]);
    assert_eq!(negative.missed((DIR, &handle()), &0, (2, at(1)), MISSES), (None, vec![gone(1)]));
}

#[test]
fn the_cache_has_a_maximum_size() {
    // If a directory has too many names, the cache drops the directory. The test exceeds the limit first by reading
    // names, then by creating names.
    let mut negative = Negative::default();
    let number = miss(&mut negative, 1, at(0)).unwrap();
    negative.granted(DIR, number, gone(1), 1).unwrap();
    let names = |range: std::ops::Range<usize>| range.map(|number| Bytes::from(number.to_string()));
    assert!(negative.read(DIR, number, names(0..NAMES_OF_DIR)));
    assert!(!negative.read(DIR, number, names(NAMES_OF_DIR..NAMES_OF_DIR + 1)));
    assert_eq!(negative.finished(DIR, number, false, at(0)), Some(gone(1)));
    let mut negative = knowing(&[]);
    let back = names(0..NAMES_OF_DIR + 1).find_map(|name| negative.makes(DIR, &name, at(0)));
    assert_eq!((back, negative.names), (Some(gone(1)), 0));
    // With too many directories, the cache drops the least recently used directory.
    let mut negative = knowing(&["a"]);
    let mut back = Vec::new();
    for dir in 0..2 * DIRS as u64 {
        back.extend(negative.missed((FileId(100 + dir), &handle()), &0, (1, at(0)), MISSES).1);
    }
    assert_eq!((back, negative.dirs.len()), (vec![gone(1)], DIRS));
    // The cache is switched off after too many create requests without a reply.
    let mut negative = knowing(&[]);
    for number in 0..DOUBTS {
        negative.makes(DIR, &number.to_be_bytes(), at(0));
        let back = negative.made(DIR, &number.to_be_bytes(), false);
        assert_eq!(back.is_empty(), number + 1 < DOUBTS);
    }
    assert_eq!(miss(&mut negative, 1, at(100)), None);
}

/// A request that the mount has sent and that is still unanswered.
#[derive(Clone, Debug)]
enum Sent {
    Make { name: u8, done: bool, abandoned: bool },
    Remove { name: u8, done: Option<bool>, removal: Option<Removal> },
    Ask { number: u64, given: Option<Option<u8>> },
    Read { number: u64, page: u8, names: Option<Vec<u8>> },
}

/// A model of an mgr with one directory, of clients other than the mount that change the directory, and of the mount.
#[derive(Default)]
struct Model {
    negative: Negative<u8>,
    there: BTreeSet<u8>,
    granted: Option<u8>,
    grants: u8,
    epoch: u64,
    now: i64,
    sent: Vec<Sent>,
    /// Number of lookups that the cache answered without a request to the mgr.
    known: usize,
}

impl Model {
    fn miss(&mut self) {
        if self.there.len() == usize::from(NAMES_USED) {
            return;
        }
        let asked = miss(&mut self.negative, self.epoch, at(self.now));
        self.sent.extend(asked.map(|number| Sent::Ask { number, given: None }));
    }

    /// Lets the mgr execute a request.
    fn carry_out(&mut self, which: usize) {
        match &mut self.sent[which] {
            Sent::Make { name, done: done @ false, .. } => {
                *done = true;
                self.there.insert(*name);
            }
            Sent::Remove { name, done: done @ None, .. } => *done = Some(self.there.remove(name)),
            Sent::Ask { given: given @ None, .. } => {
                *given = Some(None);
                if self.granted.is_none() {
                    self.grants = self.grants.wrapping_add(1);
                    self.granted = Some(self.grants);
                    *given = Some(self.granted);
                }
            }
            // In this model, each page of the directory contains at most one name.
            Sent::Read { page, names: names @ None, .. } => {
                *names = Some(self.there.iter().copied().filter(|name| name == page).collect());
            }
            _ => {}
        }
    }

    /// Lets the mount receive the reply to a request.
    fn answer(&mut self, which: usize) {
        let sent = self.sent[which].clone();
        match sent {
            Sent::Make { name, done: true, abandoned } => {
                if !abandoned {
                    self.negative.made(DIR, &[name], true);
                }
            }
            Sent::Remove { done: Some(done), removal, .. } => {
                if let Some(removal) = removal.filter(|_| done) {
                    self.negative.removed(removal);
                }
            }
            Sent::Ask { number, given: Some(given) } => {
                let granted = given.map(|id| self.negative.granted(DIR, number, gone(id), self.epoch));
                match granted {
                    Some(Ok(())) => self.sent.push(Sent::Read { number, page: 0, names: None }),
                    Some(Err(back)) => self.given_back(&back),
                    None => drop(self.negative.finished(DIR, number, false, at(self.now))),
                }
            }
            Sent::Read { number, page, names: Some(names) } => {
                let names = names.into_iter().map(|name| Bytes::from(vec![name]));
                match self.negative.read(DIR, number, names) {
                    true if page + 1 < NAMES_USED => {
                        self.sent.push(Sent::Read { number, page: page + 1, names: None });
                    }
                    wanted => {
                        let back = self.negative.finished(DIR, number, wanted, at(self.now));
                        back.iter().for_each(|back| self.given_back(back));
                    }
                }
            }
            _ => return,
        }
        self.sent.swap_remove(which);
    }

    fn given_back(&mut self, gone: &DelegationToReturn) {
        if self.granted.is_some_and(|id| stateid(id) == gone.stateid) {
            self.granted = None;
        }
    }

    /// Another client creates or removes a name, after the mgr has recalled the delegation.
    fn others_change(&mut self, name: u8) {
        if let Some(id) = self.granted {
            // If the reply that grants the delegation is still in flight, the mount rejects the recall, and the mgr
            // delays the change by the other client.
            let Some(gone) = self.negative.lose(&stateid(id), at(self.now)) else { return };
            self.given_back(&gone);
        }
        if !self.there.remove(&name) {
            self.there.insert(name);
        }
    }

    /// The mgr ends the session. The mount receives no reply to the requests in flight, and loses the delegation.
    fn new_session(&mut self) {
        self.epoch += 1;
        self.granted = None;
        for sent in std::mem::take(&mut self.sent) {
            match sent {
                Sent::Make { name, done, abandoned } => {
                    if !abandoned {
                        self.negative.made(DIR, &[name], false);
                    }
                    // The mgr may still receive and execute the create request after the end of the session.
                    self.sent.push(Sent::Make { name, done, abandoned: true });
                }
                Sent::Ask { number, .. } | Sent::Read { number, .. } => {
                    self.negative.finished(DIR, number, false, at(self.now));
                }
                Sent::Remove { .. } => {}
            }
        }
    }

    fn step(&mut self, (what, which): (u8, u8)) {
        self.now += 1;
        let name = which % NAMES_USED;
        let sent = usize::from(which).checked_rem(self.sent.len());
        match (what, sent) {
            (0..3, _) => self.miss(),
            (3, _) => {
                self.negative.makes(DIR, &[name], at(self.now));
                self.sent.push(Sent::Make { name, done: false, abandoned: false });
            }
            (4, _) => {
                let removal = self.negative.removes(DIR, &[name]);
                self.sent.push(Sent::Remove { name, done: None, removal });
            }
            (5, _) if which > 180 => self.others_change(name),
            (6, Some(sent)) if which > 200 => {
                if let Sent::Make { name, abandoned: abandoned @ false, .. } = &mut self.sent[sent] {
                    *abandoned = true;
                    self.negative.made(DIR, &[*name], false);
                }
            }
            (7, _) if which > 230 => self.new_session(),
            (7, _) => self.now += 20,
            (8..14, Some(sent)) => self.carry_out(sent),
            (_, Some(sent)) => self.answer(sent),
            _ => {}
        }
        for name in 0..NAMES_USED {
            if self.negative.is_absent(DIR, &[name], &0, self.epoch) {
                self.known += 1;
                assert!(!self.there.contains(&name), "{name} is there");
            }
        }
        let names: usize = self.negative.dirs.values().map(|known| known.may_be.len()).sum();
        assert_eq!(self.negative.names, names);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn a_name_reported_as_absent_does_not_exist(steps in prop::collection::vec((0..20u8, any::<u8>()), 1..120)) {
        let mut model = Model::default();
        steps.into_iter().for_each(|step| model.step(step));
    }
}

#[test]
fn generated_histories_fill_the_cache() {
    let mut random = 1_u64;
    let mut known = 0;
    for _ in 0..3000 {
        let mut model = Model::default();
        for _ in 0..200 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            model.step((((random >> 33) % 20) as u8, (random >> 48) as u8));
        }
        known += model.known;
    }
    assert!(known > 10_000, "{known}");
}
