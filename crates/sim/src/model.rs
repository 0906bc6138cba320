//! A model of file contents: all changes of the bytes of files, and the values that a read may return.
//!
//! The rules follow from `docs/SEMANTICS.md`.
//!
//! A change is *definite* for a reader if the promises say that the reader sees the change. The reader sees a change
//! if the call that made the change returned on the reader's own mount before the read began, or if the change was
//! durable before the reader opened the file. Change A is *behind* a later change B if, before B began, A was durable
//! or had returned through the mount of B. In runs without faults, clients are coherent: every mount must see a
//! change as soon as the change has returned.
//!
//! A byte may have the value of any change that is not behind a definite change. A change is *doubtful* if it failed,
//! or if it was not durable when its client was killed. A doubtful change may be visible or not, at any later time.

mod bytes;

use std::collections::{BTreeMap, BTreeSet};
use types::FileId;

pub use bytes::{pattern, payload};

/// A point in the order of all events of a run. Each event has its own point.
pub type Moment = u64;

/// Identifier of a change of a file, unique in a run.
pub type ChangeId = u32;

/// Identifier of an open file of a client, unique in a run.
pub type HandleId = u32;

/// What a change does to the bytes and the size of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// A write of `len` bytes at `offset`.
    Write { offset: u64, len: u64 },
    /// A change of the file size to `size`. If the file is later longer than `size`, the bytes from `size` on are zeros
    /// until a client writes them.
    Cut { size: u64 },
    /// A growth to `size` if the file is smaller; no byte changes its value.
    Grow { size: u64 },
}

/// A change of the bytes or the size of a file by a client.
#[derive(Clone, Debug)]
struct Change {
    id: ChangeId,
    client: u64,
    handle: HandleId,
    what: What,
    began: Moment,
    returned: Option<Moment>,
    durable: Option<Moment>,
    doubtful: bool,
    /// Whether every client must see the change as soon as the call that made the change has returned.
    coherent: bool,
}

/// A client that reads a file.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    /// The host number of the reading client.
    pub client: u64,
    /// The point, in the order of events, at which the reader opened the file.
    pub opened: Moment,
    /// The point, in the order of events, at which the read began.
    pub began: Moment,
}

impl Change {
    fn covers(&self, at: u64) -> bool {
        match self.what {
            What::Write { offset, len } => (offset..offset + len).contains(&at),
            What::Cut { size } => at >= size,
            What::Grow { .. } => false,
        }
    }

    fn is_definite(&self, reader: Reader) -> bool {
        let met = self.coherent || self.client == reader.client;
        let own = met && self.returned.is_some_and(|at| at < reader.began);
        !self.doubtful && (own || self.durable.is_some_and(|at| at < reader.opened))
    }

    fn is_behind(&self, later: &Change) -> bool {
        let met = self.coherent || self.client == later.client;
        let own = met && self.returned.is_some_and(|at| at < later.began);
        !self.doubtful && (own || self.durable.is_some_and(|at| at < later.began))
    }

    fn is_cut(&self) -> bool {
        matches!(self.what, What::Cut { .. })
    }

    /// Returns the minimum size of the file after a write or growth, or its exact size after a truncation.
    fn reach(&self) -> u64 {
        match self.what {
            What::Write { offset, len } => offset + len,
            What::Cut { size } | What::Grow { size } => size,
        }
    }

    /// Returns whether the change is durable as soon as its call has returned. This holds for truncations and growths.
    fn is_at_once(&self) -> bool {
        !matches!(self.what, What::Write { .. })
    }
}

#[derive(Debug, Default)]
struct FileModel {
    changes: Vec<Change>,
}

/// The model of all files of a run.
#[derive(Debug, Default)]
pub struct Model {
    now: Moment,
    next: ChangeId,
    /// Whether clients are coherent during the whole run. This holds if the plan has no faults.
    pub coherent: bool,
    files: BTreeMap<FileId, FileModel>,
    /// Reads that returned a wrong result while the reading client had changes of the file that were not durable.
    /// Each entry lists these changes. If the client later learns that one of these changes has failed, this failure
    /// explains the read. Otherwise, the read is a violation.
    suspicions: Vec<(FileId, String, Vec<ChangeId>)>,
    /// Descriptions of all violations of the promises that the model has found.
    pub failures: Vec<String>,
    /// Number of reads whose result was compared with the model.
    pub reads: u64,
}

impl Model {
    /// Returns a new point in the order of events, which follows all earlier points.
    pub fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// Records a violation of the promises of `docs/SEMANTICS.md`.
    pub fn fail(&mut self, what: String) {
        crate::trace::say(format!("WRONG: {what}"));
        self.failures.push(what);
    }

    fn begin(&mut self, file: FileId, client: u64, handle: HandleId, what: What) -> ChangeId {
        let (id, began) = (self.next, self.tick());
        self.next += 1;
        let (doubtful, coherent) = (false, self.coherent);
        let change = Change { id, client, handle, what, began, returned: None, durable: None, doubtful, coherent };
        self.files.entry(file).or_default().changes.push(change);
        id
    }

    /// Records that a write has begun.
    pub fn write(&mut self, file: FileId, client: u64, handle: HandleId, offset: u64, len: u64) -> ChangeId {
        self.begin(file, client, handle, What::Write { offset, len })
    }

    /// Records that a truncation has begun.
    pub fn cut(&mut self, file: FileId, client: u64, handle: HandleId, size: u64) -> ChangeId {
        self.begin(file, client, handle, What::Cut { size })
    }

    /// Records that an allocation of space has begun, which makes the file at least `size` bytes long.
    pub fn grow(&mut self, file: FileId, client: u64, handle: HandleId, size: u64) -> ChangeId {
        self.begin(file, client, handle, What::Grow { size })
    }

    /// Records that the client's call for a change has returned. A truncation or growth that succeeded is durable from
    /// now on; a write becomes durable later.
    pub fn returned(&mut self, file: FileId, id: ChangeId, ok: bool) {
        let now = self.tick();
        let changes = self.files.entry(file).or_default().changes.iter_mut();
        for change in changes.filter(|change| change.id == id) {
            change.returned = Some(now);
            change.doubtful |= !ok;
            if ok && change.is_at_once() {
                change.durable = Some(now);
            }
        }
    }

    /// Records that an fsync or close of an open file has returned. `began` is the point, in the order of events, at
    /// which the client made the call.
    pub fn synced(&mut self, file: FileId, client: u64, handle: HandleId, began: Moment, ok: bool) {
        let now = self.tick();
        for change in &mut self.files.entry(file).or_default().changes {
            let open = change.client == client && change.durable.is_none();
            if open && ok && change.handle == handle && change.returned.is_some_and(|at| at < began) && !change.doubtful
            {
                change.durable = Some(now);
            }
            // The client reports a failed write only once. So a sync that succeeds after a failed sync does not prove
            // that the earlier changes are durable.
            change.doubtful |= open && !ok;
        }
    }

    /// Records that a client was killed. The client's changes that were not durable are doubtful from now on.
    pub fn client_died(&mut self, client: u64) {
        self.tick();
        for file in self.files.values_mut() {
            let open = file.changes.iter_mut().filter(|change| change.client == client && change.durable.is_none());
            open.for_each(|change| change.doubtful = true);
        }
    }

    /// Returns the minimum and the maximum size that a reader may see.
    pub fn sizes(&self, file: FileId, reader: Reader) -> (u64, u64) {
        self.files.get(&file).map_or((0, 0), |file| file.sizes(reader))
    }

    /// Compares the bytes `got`, which a read of `wanted` bytes at `offset` has returned, with the model of the file.
    pub fn check_read(&mut self, file: FileId, reader: Reader, offset: u64, wanted: u64, got: &[u8]) {
        self.reads += 1;
        let Some(known) = self.files.get(&file) else { return };
        let (least, most) = known.sizes(reader);
        let end = offset + got.len() as u64;
        let mut wrong = None;
        if !got.is_empty() && end > most {
            wrong = Some(format!("read up to byte {end} of a file of at most {most} bytes"));
        } else if (got.len() as u64) < wanted.min(least.saturating_sub(offset)) {
            wrong = Some(format!("read up to byte {end} only of a file of at least {least} bytes"));
        }
        let wrong = wrong.or_else(|| known.wrong_byte(reader, offset, got));
        if let Some(wrong) = wrong {
            let who = crate::hosts::name(reader.client);
            self.suspect(file, reader, format!("{who}, file {}, {wanted} bytes at {offset}: {wrong}", file.0));
        }
    }

    /// Compares a file size that a client has received with the model of the file.
    pub fn check_size(&mut self, file: FileId, reader: Reader, size: u64) {
        let (least, most) = self.sizes(file, reader);
        if !(least..=most).contains(&size) {
            let who = crate::hosts::name(reader.client);
            let what = format!("{who}, file {}: its size is {size}, not from {least} to {most}", file.0);
            self.suspect(file, reader, what);
        }
    }

    /// Records a read that returned a wrong result. The read is a violation, unless a change of the file by the same
    /// client, which is not durable yet, fails later.
    fn suspect(&mut self, file: FileId, reader: Reader, what: String) {
        let open = |c: &&Change| c.client == reader.client && c.durable.is_none() && !c.doubtful;
        let changes = self.files.get(&file).map_or(&[][..], |file| &file.changes);
        let open: Vec<ChangeId> = changes.iter().filter(open).map(|change| change.id).collect();
        if open.is_empty() {
            self.fail(what);
        } else {
            crate::trace::say(format!("SUSPECT: {what}"));
            self.suspicions.push((file, what, open));
        }
    }

    /// Judges the wrong reads in `suspicions` at the end of the run, when no further change can fail. Every wrong
    /// read that no failed change explains is a violation.
    pub fn judge(&mut self) {
        for (file, what, open) in std::mem::take(&mut self.suspicions) {
            let changes = self.files.get(&file).map_or(&[][..], |file| &file.changes);
            if !changes.iter().any(|change| change.doubtful && open.contains(&change.id)) {
                self.fail(what);
            }
        }
    }
}

impl FileModel {
    /// Returns the candidates for the latest truncation that the reader sees. `None` in the list means that the
    /// reader may see no truncation at all.
    fn last_cuts(&self, reader: Reader) -> Vec<Option<&Change>> {
        let cuts: Vec<&Change> = self.changes.iter().filter(|change| change.is_cut()).collect();
        let definite: Vec<&&Change> = cuts.iter().filter(|cut| cut.is_definite(reader)).collect();
        let mut last: Vec<Option<&Change>> =
            cuts.iter().filter(|cut| !definite.iter().any(|d| cut.is_behind(d))).map(|cut| Some(*cut)).collect();
        if definite.is_empty() {
            last.push(None);
        }
        last
    }

    fn sizes(&self, reader: Reader) -> (u64, u64) {
        let writes = || self.changes.iter().filter(|change| !change.is_cut());
        let (mut least, mut most) = (u64::MAX, 0);
        for cut in self.last_cuts(reader) {
            let base = cut.map_or(0, Change::reach);
            let after = |w: &&Change| cut.is_none_or(|cut| cut.is_behind(w));
            let sure = writes().filter(|w| w.is_definite(reader)).filter(after).map(Change::reach);
            least = least.min(sure.max().unwrap_or(0).max(base));
            let maybe = writes().filter(|w| cut.is_none_or(|cut| !w.is_behind(cut))).map(Change::reach);
            most = most.max(maybe.max().unwrap_or(0).max(base));
        }
        (least, most)
    }

    /// Describes the first byte of a read whose value no allowed change has written. Returns `None` if every byte has
    /// an allowed value.
    fn wrong_byte(&self, reader: Reader, offset: u64, got: &[u8]) -> Option<String> {
        let end = offset + got.len() as u64;
        let mut borders: BTreeSet<u64> = BTreeSet::from([offset, end]);
        for change in &self.changes {
            let ends = match change.what {
                What::Write { offset, len } => [offset, offset + len],
                What::Cut { size } | What::Grow { size } => [size, size],
            };
            borders.extend(ends.into_iter().filter(|at| (offset..end).contains(at)));
        }
        let borders: Vec<u64> = borders.into_iter().collect();
        borders.windows(2).find_map(|piece| {
            let (from, to) = (piece[0], piece[1]);
            let over: Vec<&Change> = self.changes.iter().filter(|change| change.covers(from)).collect();
            let sure: Vec<&&Change> = over.iter().filter(|change| change.is_definite(reader)).collect();
            let possible: Vec<&Change> =
                over.iter().filter(|change| !sure.iter().any(|s| change.is_behind(s))).copied().collect();
            let zero = sure.is_empty() || possible.iter().any(|change| change.is_cut());
            let fits = |at: u64| {
                let byte = got[(at - offset) as usize];
                zero && byte == 0 || possible.iter().any(|c| !c.is_cut() && pattern(c.id, at) == byte)
            };
            let at = (from..to).find(|at| !fits(*at))?;
            Some(self.explain(at, got[(at - offset) as usize], &possible, zero))
        })
    }

    fn explain(&self, at: u64, byte: u8, possible: &[&Change], zero: bool) -> String {
        let ids: Vec<ChangeId> = possible.iter().map(|change| change.id).collect();
        let of = self.changes.iter().filter(|c| !c.is_cut() && c.covers(at) && pattern(c.id, at) == byte);
        let looks_like: Vec<ChangeId> = of.map(|change| change.id).collect();
        let over: Vec<String> = self.changes.iter().filter(|c| c.covers(at)).map(|c| format!("{c:?}")).collect();
        format!(
            "byte {at} is {byte:#x}, which looks like one of {looks_like:?}; allowed are the values of {ids:?}{}; all that \
             touched it: {}",
            if zero { " and zero" } else { "" },
            over.join("; ")
        )
    }
}
