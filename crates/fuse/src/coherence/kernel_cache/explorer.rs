//! A test of [`KernelCache`] with every short sequence of events of a modelled kernel, a mount without write-back, and
//! another client that uses the same file.
//!
//! The model of the kernel follows `fs/fuse` of Linux. The modelled kernel counts the changes of its cached attributes,
//! and discards the reply to a request that is older than the last change. Whenever no request is in flight, the
//! recorded size is unknown or equals the size that the kernel has cached. After an open, the kernel never considers
//! the size of an older version valid.

use super::*;
use crate::coherence::testing::attrs;
use std::collections::HashSet;

const FILE: u64 = 7;
/// The number of a second file, whose recorded size may change while requests for the modelled file are in flight.
const OTHER: u64 = 8;
/// Number of events in the longest sequences that the test executes.
const DEPTH: usize = 8;
/// Largest number of requests that the modelled kernel has in flight.
const FLIGHTS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Kind {
    Getattr,
    /// A GETATTR by a thread of the mount. After the reply, the thread reads the kernel's cached size.
    Show,
    Truncate(u64),
    Write(u64),
    /// A read of a page that may find the end of the file.
    Read,
}

/// A request of the modelled kernel that is in flight.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct RequestInFlight {
    kind: Kind,
    stage: u8,
    /// The number of attribute changes that the kernel had counted when it sent the request.
    asked: u64,
    doubts: u64,
    /// Change attribute and size that the server reported for this request.
    found: (u64, u64),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send(Kind),
    Advance(usize),
    OtherClient(u64),
    OtherFile,
    Open,
}

/// The attributes of the file that the modelled kernel has cached.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Kernel {
    size: u64,
    changes: u64,
    is_valid: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Model {
    record: Option<Cached>,
    doubts: u64,
    server: (u64, u64),
    kernel: Kernel,
    flights: Vec<RequestInFlight>,
    /// For each size from 0 to 3, whether the server has had this size since the last open that began without requests
    /// in flight.
    since_open: Option<[bool; 4]>,
}

impl Model {
    fn new() -> Model {
        let cache = KernelCache::default();
        cache.entry_sent(FILE, &attrs(1, 2));
        let kernel = Kernel { size: 2, changes: 1, is_valid: true };
        let record = cache.record().files.get(&FILE).cloned();
        Model { record, doubts: 0, server: (1, 2), kernel, flights: Vec::new(), since_open: None }
    }

    /// Applies an event to a `KernelCache` built from the recorded state, and stores the resulting state.
    fn cache<T>(&mut self, event: impl FnOnce(&KernelCache) -> T) -> T {
        let cache = KernelCache::default();
        cache.entry_sent(OTHER, &attrs(1, 0));
        cache.record().files.extend(self.record.take().map(|cached| (FILE, cached)));
        cache.record().doubts = self.doubts;
        let outcome = event(&cache);
        let record = cache.record();
        (self.record, self.doubts) = (record.files.get(&FILE).cloned(), record.doubts);
        outcome
    }

    fn is_in_flight(&self, wanted: impl Fn(Kind) -> bool) -> bool {
        self.flights.iter().any(|flight| wanted(flight.kind))
    }

    fn set_server(&mut self, size: u64) {
        self.server = (self.server.0 + 1, size);
        self.since_open.iter_mut().for_each(|sizes| sizes[size as usize] = true);
    }

    fn kernel_changes(&mut self, size: u64, is_valid: bool) {
        self.kernel = Kernel { size, changes: self.kernel.changes + 1, is_valid };
    }

    fn may(&self, step: Step) -> bool {
        let truncates = self.is_in_flight(|kind| matches!(kind, Kind::Truncate(_)));
        let writes = self.is_in_flight(|kind| matches!(kind, Kind::Write(_)));
        match step {
            Step::Advance(at) => at < self.flights.len(),
            Step::Send(_) if self.flights.len() == FLIGHTS => false,
            // The kernel holds the inode lock during a truncation, so no other truncation or write runs at the same
            // time.
            Step::Send(Kind::Truncate(_)) => !truncates && !writes,
            Step::Send(Kind::Write(_)) => !truncates,
            _ => true,
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Send(kind) => {
                let (asked, doubts) = (self.kernel.changes, self.doubts);
                self.flights.push(RequestInFlight { kind, stage: 0, asked, doubts, found: (0, 0) });
            }
            Step::Advance(at) => {
                let mut flight = self.flights.remove(at);
                if self.advance(&mut flight) {
                    flight.stage += 1;
                    self.flights.insert(at, flight);
                }
            }
            Step::OtherClient(size) => self.set_server(size),
            Step::OtherFile => self.cache(|cache| cache.is_unknown(OTHER)),
            Step::Open => {
                let (change, size) = self.server;
                if self.cache(|cache| cache.is_outdated(FILE, &attrs(change, size), false)) {
                    self.kernel_changes(self.kernel.size, false);
                }
                let mut sizes = [false; 4];
                sizes[size as usize] = true;
                self.since_open = self.flights.is_empty().then_some(sizes);
            }
        }
    }

    /// Executes the next stage of a request: for example, the server executes the request, the mount records the reply,
    /// or the kernel applies the reply. Returns whether the request has further stages.
    fn advance(&mut self, flight: &mut RequestInFlight) -> bool {
        let (change, size) = flight.found;
        let found = attrs(change, size);
        match (flight.kind, flight.stage) {
            (Kind::Getattr | Kind::Show | Kind::Read, 0) => flight.found = self.server,
            (Kind::Getattr, 1) => self.cache(|cache| {
                cache.may_take(FILE, &found);
                cache.attrs_sent(FILE, &found);
            }),
            (Kind::Show, 1) => self.cache(|cache| {
                cache.may_take_own(FILE, &found);
                cache.attrs_sent(FILE, &found);
            }),
            (Kind::Getattr | Kind::Show, 2) => {
                let truncates = self.is_in_flight(|kind| matches!(kind, Kind::Truncate(_)));
                if self.kernel.changes <= flight.asked && !truncates {
                    // The attributes in the reply to the mount's own thread have no lifetime, so the kernel caches them
                    // as expired.
                    self.kernel_changes(size, flight.kind == Kind::Getattr);
                }
                return flight.kind == Kind::Show;
            }
            (Kind::Show, 3) => return self.kernel.size == size,
            (Kind::Show, _) => {
                self.cache(|cache| cache.shown(FILE, size, flight.doubts));
                return false;
            }
            (Kind::Read, 1) => self.cache(|cache| cache.may_end_at(FILE, size)),
            (Kind::Truncate(_), 0) => self.cache(|cache| cache.is_unknown(FILE)),
            (Kind::Truncate(size), 1) => {
                self.set_server(size);
                flight.found = self.server;
            }
            (Kind::Truncate(_), 2) => self.cache(|cache| {
                cache.has_now(FILE, &found);
                cache.attrs_sent(FILE, &found);
            }),
            (Kind::Write(end), 0) => self.cache(|cache| cache.grew(FILE, end)),
            (Kind::Write(end), 1) => self.set_server(self.server.1.max(end)),
            (Kind::Read, _) => {
                if self.kernel.changes <= flight.asked && size < self.kernel.size {
                    self.kernel_changes(size, self.kernel.is_valid);
                }
                return false;
            }
            (Kind::Truncate(_), _) => {
                self.kernel_changes(size, true);
                return false;
            }
            (Kind::Write(end), _) => {
                self.cache(|cache| cache.grew(FILE, end));
                self.kernel_changes(self.kernel.size.max(end), false);
                return false;
            }
            (Kind::Getattr, _) => return false,
        }
        true
    }

    fn check(&self) -> Result<(), String> {
        if !self.flights.is_empty() {
            return Ok(());
        }
        let recorded = self.record.as_ref().and_then(|cached| cached.size).map(|(size, _)| size);
        if recorded.is_some_and(|recorded| recorded != self.kernel.size) {
            return Err(format!("the record has size {recorded:?}, the kernel {:?}", self.kernel));
        }
        match self.since_open {
            Some(sizes) if self.kernel.is_valid && !sizes[self.kernel.size as usize] => {
                Err(format!("the kernel has a size from before the open: {:?}", self.kernel))
            }
            _ => Ok(()),
        }
    }
}

fn steps() -> Vec<Step> {
    let kinds = [Kind::Getattr, Kind::Show, Kind::Truncate(1), Kind::Write(3), Kind::Read];
    let mut steps: Vec<Step> = kinds.into_iter().map(Step::Send).collect();
    steps.extend((0..FLIGHTS).map(Step::Advance));
    steps.extend([Step::OtherClient(0), Step::OtherClient(2), Step::OtherFile, Step::Open]);
    steps
}

/// Executes every sequence of at most `depth` of these events, and checks the state after each event.
fn explore(steps: &[Step], depth: usize) {
    let mut seen = HashSet::new();
    let mut models = vec![Model::new()];
    for at in 0..depth {
        let mut next = Vec::new();
        for model in &models {
            for step in steps.iter().copied().filter(|step| model.may(*step)) {
                let mut after = model.clone();
                after.take(step);
                after.check().unwrap_or_else(|why| panic!("{why}, {at} steps before {step:?} in {model:?}"));
                // No event follows after a sequence of `depth` events, so do not store the resulting states.
                if at + 1 < depth && seen.insert(after.clone()) {
                    next.push(after);
                }
            }
        }
        models = next;
    }
    assert!(seen.len() > 1_000, "{} states", seen.len());
}

#[test]
fn the_kernel_has_the_recorded_size_after_every_short_history() {
    explore(&steps(), DEPTH);
}

/// Reading the kernel's size takes more events than the other requests, so this test executes longer sequences of fewer
/// events.
#[test]
fn the_kernel_has_the_recorded_size_after_the_mount_reads_it() {
    let mut steps: Vec<Step> = [Kind::Show, Kind::Write(3)].into_iter().map(Step::Send).collect();
    steps.extend((0..FLIGHTS).map(Step::Advance));
    steps.push(Step::OtherClient(1));
    explore(&steps, DEPTH + 4);
}
