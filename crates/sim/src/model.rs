//! A model of file contents: all changes of their bytes, and the values that a read may return.
//!
//! The rules are those of `docs/SEMANTICS.md`.
//!
//! A change is *definite* for a reader if the promises say that the reader sees it. Either it returned through the
//! reader's own mount before the read began, or it was durable before the reader opened the file. A change is *behind*
//! a later change if it was durable, or had returned through the same mount, before the later one began. Without
//! faults, clients are coherent: a change that has returned counts for every mount as for its own.
//!
//! A byte may have the value of any change that is not behind a definite one. A change that failed, or was not durable
//! when its client died, is *doubtful*: it may be visible or not, forever.

mod bytes;

use std::collections::{BTreeMap, BTreeSet};
use types::FileId;

pub use bytes::{pattern, payload};

/// A point in the order of events; no two events have the same one.
pub type Moment = u64;

/// Number of a change.
pub type ChangeId = u32;

/// Number of an open file of a client.
pub type HandleId = u32;

/// The effect of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// Writes `len` bytes at `offset`.
    Write { offset: u64, len: u64 },
    /// Sets the size; bytes past it become zeros.
    Cut { size: u64 },
    /// Sets the size if it was smaller; changes no byte.
    Grow { size: u64 },
}

/// A change of a file's bytes.
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
    /// Whether every client sees the change once it has returned.
    coherent: bool,
}

/// The reader of a file.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    /// The client.
    pub client: u64,
    /// When the reader opened the file.
    pub opened: Moment,
    /// When the read began.
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

    /// Returns the least size after a write or growth, or the exact size after a truncation.
    fn reach(&self) -> u64 {
        match self.what {
            What::Write { offset, len } => offset + len,
            What::Cut { size } | What::Grow { size } => size,
        }
    }

    /// Returns whether the change is durable when it has returned.
    fn is_at_once(&self) -> bool {
        !matches!(self.what, What::Write { .. })
    }
}

#[derive(Debug, Default)]
struct FileModel {
    changes: Vec<Change>,
}

/// The model of all files.
#[derive(Debug, Default)]
pub struct Model {
    now: Moment,
    next: ChangeId,
    /// Whether clients are coherent during the whole run.
    pub coherent: bool,
    files: BTreeMap<FileId, FileModel>,
    /// Reads that missed a change of their own client that was not durable yet. They are wrong, unless a failure of
    /// that change is reported later.
    suspicions: Vec<(FileId, String, Vec<ChangeId>)>,
    /// Violations found.
    pub failures: Vec<String>,
    /// Number of reads compared.
    pub reads: u64,
}

impl Model {
    /// Advances the time and returns it.
    pub fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// Records a violation.
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

    /// Records the begin of a write.
    pub fn write(&mut self, file: FileId, client: u64, handle: HandleId, offset: u64, len: u64) -> ChangeId {
        self.begin(file, client, handle, What::Write { offset, len })
    }

    /// Records the begin of a truncation.
    pub fn cut(&mut self, file: FileId, client: u64, handle: HandleId, size: u64) -> ChangeId {
        self.begin(file, client, handle, What::Cut { size })
    }

    /// Records the begin of a growth to at least `size`.
    pub fn grow(&mut self, file: FileId, client: u64, handle: HandleId, size: u64) -> ChangeId {
        self.begin(file, client, handle, What::Grow { size })
    }

    /// Records that a change has returned. All changes except writes are durable then.
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

    /// Records that an fsync or close of a handle, begun at `began`, has returned.
    pub fn synced(&mut self, file: FileId, client: u64, handle: HandleId, began: Moment, ok: bool) {
        let now = self.tick();
        for change in &mut self.files.entry(file).or_default().changes {
            let open = change.client == client && change.durable.is_none();
            if open && ok && change.handle == handle && change.returned.is_some_and(|at| at < began) && !change.doubtful
            {
                change.durable = Some(now);
            }
            // A failure is reported once. A later success says nothing about earlier changes.
            change.doubtful |= open && !ok;
        }
    }

    /// Records the death of a client: its changes that were not durable may be visible or not.
    pub fn client_died(&mut self, client: u64) {
        self.tick();
        for file in self.files.values_mut() {
            let open = file.changes.iter_mut().filter(|change| change.client == client && change.durable.is_none());
            open.for_each(|change| change.doubtful = true);
        }
    }

    /// Returns the least and the largest size that a reader may see.
    pub fn sizes(&self, file: FileId, reader: Reader) -> (u64, u64) {
        self.files.get(&file).map_or((0, 0), |file| file.sizes(reader))
    }

    /// Compares the result of a read of `wanted` bytes at `offset`.
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

    /// Compares a size that a client reported.
    pub fn check_size(&mut self, file: FileId, reader: Reader, size: u64) {
        let (least, most) = self.sizes(file, reader);
        if !(least..=most).contains(&size) {
            let who = crate::hosts::name(reader.client);
            let what = format!("{who}, file {}: its size is {size}, not from {least} to {most}", file.0);
            self.suspect(file, reader, what);
        }
    }

    /// Records a read of a wrong value. It is a violation, unless a change of the reader's own client fails later.
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

    /// Ends the run: no change can fail any more, so suspicions that remain are violations.
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
    /// Returns the truncations that may be the last one; `None` means no truncation of the initially empty file.
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

    /// Describes the first byte whose value no allowed change explains.
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
