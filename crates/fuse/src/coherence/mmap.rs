//! Coherence of memory mappings with reads and writes that bypass the page cache of the same file.
//!
//! Before the kernel sends a direct write, it writes back and drops the pages of the written range. The kernel may read
//! these pages again before the written bytes arrive. If a program then stores to such a page through a mapping, the
//! kernel later writes back the whole page, with old bytes. So the mount keeps copies of recently read pages as the
//! kernel received them: their *twins* (see [`crate::coherence::page_twins`]).
//!
//! If the kernel has recently read pages of a direct write's range, the mount makes the kernel drop these pages again
//! after the write. If the kernel writes back pages of this range during the direct write, the mount writes only the
//! bytes that differ from the twins.

use crate::coherence::page_twins::{PAGE, differing};
use client::Segment;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use types::ByteRange;

/// Largest number of bytes of a generation of a file's twins. When the younger generation exceeds this number, the
/// younger generation replaces the older generation. So the mount keeps the twins of the last `GENERATION` bytes that
/// the kernel has read, and at most about twice as many. The mount assumes that the kernel reads fewer bytes of the
/// file between dropping the pages for a direct write and sending the write.
const GENERATION: usize = 8 << 20;

/// The page twins of an open file, and its reads, write-backs and direct writes in progress.
#[derive(Default)]
pub(super) struct MappedPages {
    state: Mutex<State>,
    written_back: Notify,
}

#[derive(Default)]
struct State {
    /// The id that was assigned last. Reads, write-backs, direct writes and other changes get increasing ids when they
    /// begin.
    next: u64,
    /// Number of opens of the file for writing that bypass the page cache.
    writers: usize,
    /// Twins by page number: the younger generation, and the older generation.
    young: HashMap<u64, Twin>,
    old: HashMap<u64, Twin>,
    young_bytes: usize,
    /// The id of the last change of the file other than a write, such as a truncation.
    changed: u64,
    /// Ids and ranges of the reads in progress that fill pages of the kernel's page cache.
    filling: Vec<(u64, ByteRange)>,
    /// Ids and ranges of the kernel's write-backs in progress.
    writing_back: Vec<(u64, ByteRange)>,
    /// Direct writes to the file that are in progress.
    writing: Vec<DirectWrite>,
}

/// A copy of a page as the kernel read it, up to the end of the file, or as the kernel last wrote it back.
struct Twin {
    bytes: Box<[u8]>,
    since: u64,
    /// Whether the kernel has dropped the page. The kernel may still be writing the page back, and waits for this
    /// write-back before it reads the page again.
    gone: bool,
    /// The smallest range of the page that contains all direct writes that were in progress when this twin was made, or
    /// that have ended since then.
    written_directly: Option<ByteRange>,
}

impl Twin {
    /// Records a direct write of `range` to this page; `number` is the page number.
    fn record_direct_write(&mut self, number: u64, range: ByteRange) {
        let Some(within) = range.intersection(ByteRange { offset: number * PAGE, len: PAGE }) else { return };
        let both = self.written_directly.map_or(within, |past| {
            let offset = past.offset.min(within.offset);
            ByteRange { offset, len: past.end().max(within.end()) - offset }
        });
        self.written_directly = Some(both);
    }
}

/// A direct write to a file that is in progress.
struct DirectWrite {
    id: u64,
    range: ByteRange,
    /// Whether the kernel has read pages of the written range since the direct write began.
    got: bool,
}

/// Guard of a read that fills pages of the kernel's page cache. Dropping the guard records that the read has ended.
pub(crate) struct PageReadGuard<'a>(&'a MappedPages, u64);

/// Guard of a write-back of pages by the kernel. Dropping the guard records that the write-back has ended.
pub(crate) struct WriteBackGuard<'a>(&'a MappedPages, u64);

/// Guard of a direct write. Dropping the guard records that the write has ended.
pub(crate) struct DirectWriteGuard<'a>(&'a MappedPages, u64, ByteRange);

impl MappedPages {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds `more`, 1 or -1, to the number of opens for writing that bypass the page cache.
    pub(super) fn add_writers(&self, more: isize) {
        let mut state = self.state();
        state.writers = state.writers.saturating_add_signed(more);
    }

    /// Begins a read that fills pages of the kernel's page cache.
    pub(super) fn fill(&self, range: ByteRange) -> PageReadGuard<'_> {
        PageReadGuard(self, self.state().fill_begins(range))
    }

    /// Begins a write-back of `data` at `offset`. Returns the ranges within `data` that the mount has to write.
    pub(super) fn write_back(&self, offset: u64, data: &[u8]) -> (WriteBackGuard<'_>, Vec<Range<usize>>) {
        let (id, runs) = self.state().write_back_begins(offset, data);
        (WriteBackGuard(self, id), runs)
    }

    /// Begins a direct write. First waits until all write-backs of pages in its range that are in progress have ended,
    /// because these write-backs write older bytes.
    pub(super) async fn begin_direct_write(&self, range: ByteRange) -> DirectWriteGuard<'_> {
        let (id, waits) = self.state().write_begins(range);
        let past = DirectWriteGuard(self, id, range);
        if waits {
            Box::pin(self.wait_for_pages(id)).await;
        }
        past
    }

    async fn wait_for_pages(&self, id: u64) {
        loop {
            let notified = self.written_back.notified();
            let mut notified = std::pin::pin!(notified);
            notified.as_mut().enable();
            if !self.state().has_to_wait(id) {
                return;
            }
            notified.await;
        }
    }

    /// Records the bytes of a write-through write: the kernel has put these bytes into its page cache, and sends them
    /// to the mount.
    pub(super) fn has_now(&self, offset: u64, data: &[u8]) {
        self.state().has_now(offset, data);
    }

    /// Records a change of the file other than a write. The kernel applies the same change to its pages.
    pub(super) fn changed_otherwise(&self) {
        self.state().changed_otherwise();
    }
}

impl PageReadGuard<'_> {
    /// Records the bytes that the kernel is about to receive for its page cache.
    pub(crate) fn got(&self, data: &[Segment]) {
        self.0.state().got(self.1, data);
    }
}

impl Drop for PageReadGuard<'_> {
    fn drop(&mut self) {
        self.0.state().filling.retain(|(id, _)| *id != self.1);
    }
}

impl Drop for WriteBackGuard<'_> {
    fn drop(&mut self) {
        self.0.state().writing_back.retain(|(id, _)| *id != self.1);
        self.0.written_back.notify_waiters();
    }
}

impl DirectWriteGuard<'_> {
    /// Records that the servers have the written bytes. Returns `None` if the kernel cannot have read older bytes of
    /// the written range during the write. Otherwise returns the range whose pages the kernel has to drop, and the id
    /// for [`DirectWriteGuard::pages_dropped`].
    pub(super) fn written(&self) -> Option<(ByteRange, u64)> {
        self.0.state().written(self.1).map(|mark| (self.2, mark))
    }

    /// Records that the kernel has dropped the pages of the direct write's range.
    pub(super) fn pages_dropped(&self, mark: u64) {
        self.0.state().pages_dropped(self.2, mark);
    }
}

impl Drop for DirectWriteGuard<'_> {
    fn drop(&mut self) {
        self.0.state().writing.retain(|writing| writing.id != self.1);
    }
}

/// Returns the numbers of the pages that contain bytes of a range.
fn pages(range: ByteRange) -> Range<u64> {
    range.offset / PAGE..range.end().div_ceil(PAGE)
}

/// Extends a range to whole pages, because the kernel caches only whole pages.
fn whole_pages(range: ByteRange) -> ByteRange {
    let (start, end) = (pages(range).start.saturating_mul(PAGE), pages(range).end.saturating_mul(PAGE));
    ByteRange { offset: start, len: end - start }
}

impl State {
    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn fill_begins(&mut self, range: ByteRange) -> u64 {
        let id = self.id();
        self.filling.push((id, range));
        id
    }

    fn got(&mut self, id: u64, data: &[Segment]) {
        let Some((_, range)) = self.filling.iter().copied().find(|fill| fill.0 == id) else { return };
        for writing in &mut self.writing {
            writing.got |= writing.range.overlaps(whole_pages(range));
        }
        // Pages need no twins if no open for writing bypasses the page cache. The read bytes cannot serve as twins if
        // the file changed during the read, for example by a truncation. A range that begins within a page is not a
        // read of pages, because the kernel reads whole pages.
        if self.writers == 0 || self.changed > id || !range.offset.is_multiple_of(PAGE) {
            return;
        }
        let since = self.id();
        let mut page = Vec::new();
        let mut number = range.offset / PAGE;
        for segment in data {
            let mut at = 0;
            while at < segment.len() {
                let take = (PAGE - page.len() as u64).min(segment.len() - at) as usize;
                match segment {
                    Segment::Data(data) => page.extend_from_slice(&data[at as usize..at as usize + take]),
                    Segment::Hole(_) => page.resize(page.len() + take, 0),
                }
                at += take as u64;
                if page.len() as u64 == PAGE {
                    self.keep(number, std::mem::take(&mut page), since);
                    number += 1;
                }
            }
        }
        for number in number..pages(range).end {
            self.keep(number, std::mem::take(&mut page), since);
        }
    }

    fn keep(&mut self, number: u64, bytes: Vec<u8>, since: u64) {
        let mut twin = Twin { bytes: bytes.into(), since, gone: false, written_directly: None };
        self.writing.iter().for_each(|writing| twin.record_direct_write(number, writing.range));
        if self.young_bytes > GENERATION {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.old.remove(&number);
        self.young_bytes += PAGE as usize;
        self.young.insert(number, twin);
    }

    fn twin(&self, number: u64) -> Option<&Twin> {
        self.young.get(&number).or_else(|| self.old.get(&number))
    }

    fn twin_mut(&mut self, number: u64) -> Option<&mut Twin> {
        self.young.get_mut(&number).or_else(|| self.old.get_mut(&number))
    }

    fn write_back_begins(&mut self, offset: u64, data: &[u8]) -> (u64, Vec<Range<usize>>) {
        let (id, range) = (self.id(), ByteRange { offset, len: data.len() as u64 });
        self.writing_back.push((id, range));
        let pasts = pages(range).filter_map(|page| self.twin(page)).filter_map(|twin| twin.written_directly);
        let pasts = pasts.chain(self.writing.iter().map(|writing| writing.range));
        let within = pasts.filter_map(|past| past.intersection(range));
        let mut places: Vec<_> = within.map(|p| (p.offset - offset) as usize..(p.end() - offset) as usize).collect();
        places.sort_by_key(|place| place.start);
        let mut runs: Vec<Range<usize>> = Vec::new();
        let mut take = |run: Range<usize>| match runs.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ if run.is_empty() => {}
            _ => runs.push(run),
        };
        let mut at = 0;
        for place in places {
            take(at..place.start.max(at));
            at = at.max(place.start);
            while at < place.end {
                let within = ((offset + at as u64) % PAGE) as usize;
                let end = (at + PAGE as usize - within).min(place.end);
                match self.twin((offset + at as u64) / PAGE) {
                    Some(twin) => {
                        let had = |at: usize| twin.bytes.get(at).copied().unwrap_or(0);
                        differing(at..end, |n| had(within + n - at) == data[n], &mut take);
                    }
                    None => take(at..end),
                }
                at = end;
            }
        }
        take(at..data.len());
        self.has_now(offset, data);
        (id, runs)
    }

    /// Updates the twins of pages: the kernel has `data` in its page cache, from `offset` on.
    fn has_now(&mut self, offset: u64, data: &[u8]) {
        if self.young.is_empty() && self.old.is_empty() {
            return;
        }
        let mut at = 0;
        while at < data.len() {
            let within = ((offset + at as u64) % PAGE) as usize;
            let len = (PAGE as usize - within).min(data.len() - at);
            if let Some(twin) = self.twin_mut((offset + at as u64) / PAGE) {
                let mut now = std::mem::take(&mut twin.bytes).into_vec();
                now.resize(now.len().max(within + len), 0);
                now[within..within + len].copy_from_slice(&data[at..at + len]);
                twin.bytes = now.into();
            }
            at += len;
        }
    }

    fn write_begins(&mut self, range: ByteRange) -> (u64, bool) {
        let id = self.id();
        self.writing.push(DirectWrite { id, range, got: false });
        (id, self.has_to_wait(id))
    }

    fn has_to_wait(&self, id: u64) -> bool {
        let writing = self.writing.iter().find(|writing| writing.id == id);
        let older = |range| self.writing_back.iter().any(|back| back.0 < id && back.1.overlaps(range));
        writing.is_some_and(|writing| older(writing.range))
    }

    fn written(&mut self, id: u64) -> Option<u64> {
        let DirectWrite { range, got, .. } = *self.writing.iter().find(|writing| writing.id == id)?;
        let is_getting = self.filling.iter().any(|fill| whole_pages(fill.1).overlaps(range));
        let mut has = false;
        self.for_each_within(range, |number, twin| {
            twin.record_direct_write(number, range);
            has |= !twin.gone;
        });
        (got || is_getting || has).then(|| self.id())
    }

    fn pages_dropped(&mut self, range: ByteRange, mark: u64) {
        self.for_each_within(range, |_, twin| twin.gone |= twin.since <= mark);
    }

    /// Calls `act` for all twins of pages that contain bytes of a range.
    fn for_each_within(&mut self, range: ByteRange, mut act: impl FnMut(u64, &mut Twin)) {
        let within = pages(range);
        for twins in [&mut self.young, &mut self.old] {
            if within.end - within.start < twins.len() as u64 {
                within.clone().for_each(|number| twins.get_mut(&number).into_iter().for_each(|twin| act(number, twin)));
            } else {
                twins.iter_mut().filter(|(n, _)| within.contains(n)).for_each(|(number, twin)| act(*number, twin));
            }
        }
    }

    fn changed_otherwise(&mut self) {
        self.changed = self.id();
        (self.young, self.old, self.young_bytes) = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    const LEN: usize = 2 * PAGE as usize;
    /// Size in bytes of a cell of the file. Three writers write the cells in turns: two use direct I/O, and one stores
    /// through a mapping.
    const CELL: usize = 512;

    fn page_of(number: usize) -> Range<usize> {
        number * PAGE as usize..(number + 1) * PAGE as usize
    }

    /// The state of a page in the modelled kernel.
    #[derive(Default)]
    struct Page {
        bytes: Option<Vec<u8>>,
        is_dirty: bool,
        /// The kernel locks a page while it reads or drops the page.
        is_locked: bool,
        writing_back: Option<Back>,
        filling: Option<Fill>,
    }

    /// A write-back in progress: the bytes that the kernel sends, and (once the mount has received the bytes) the id
    /// of the write-back and the ranges that the mount writes to the servers.
    struct Back(Vec<u8>, Option<(u64, Vec<Range<usize>>)>);

    /// The progress of a page read: requested, being read, or read.
    enum Fill {
        Asked,
        Begun(u64),
        Read(u64, Vec<u8>),
    }

    /// The progress of a direct write in the model.
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Stage {
        Idle,
        /// The kernel has to lock and drop the page before it sends the direct write.
        MustDropPage,
        Locked,
        PageDropped,
        Begun(u64),
        Put(u64),
        /// The kernel has to drop the page again after the direct write.
        Again(u64, u64),
        AgainLocked(u64, u64),
        Ends(u64),
    }

    struct Model {
        state: State,
        server: Vec<u8>,
        model: Vec<u8>,
        pages: [Page; 2],
        /// For each of the two direct writers: the progress, the file offset, and the byte value of its write.
        writers: [(Stage, usize, u8); 2],
    }

    impl Model {
        fn new() -> Self {
            let state = State { writers: 1, ..State::default() };
            let writers = [(Stage::Idle, 0, 0); 2];
            Model { state, server: vec![0; LEN], model: vec![0; LEN], pages: Default::default(), writers }
        }

        /// Executes the next action of one actor (a direct writer, the program with the mapping, or the kernel), unless
        /// the actor has to wait for another actor.
        fn step(&mut self, actor: u8, at: usize, byte: u8) {
            match actor % 5 {
                0 | 1 => self.begin_direct_write(usize::from(actor % 5), at, byte),
                2 => self.store(at, byte),
                3 => self.fill(at % 2),
                _ => self.write_back(at % 2, false),
            }
        }

        fn cell(owner: usize, at: usize) -> usize {
            let cells = LEN / CELL / 3;
            (at % cells * 3 + owner) * CELL
        }

        fn store(&mut self, at: usize, byte: u8) {
            let at = Model::cell(2, at) + at % CELL;
            let page = &mut self.pages[at / PAGE as usize];
            if page.is_locked {
                return;
            }
            match &mut page.bytes {
                Some(bytes) => {
                    bytes[at % PAGE as usize] = byte;
                    page.is_dirty = true;
                    self.model[at] = byte;
                }
                // The kernel reads the page only after a write-back in progress has ended. Until then, the program
                // waits, so do nothing.
                None if page.writing_back.is_none() => {
                    page.is_locked = true;
                    page.filling = Some(Fill::Asked);
                }
                None => {}
            }
        }

        fn fill(&mut self, number: usize) {
            let page = &mut self.pages[number];
            let Some(fill) = page.filling.take() else { return };
            page.filling = match fill {
                Fill::Asked => {
                    let range = ByteRange { offset: page_of(number).start as u64, len: PAGE };
                    Some(Fill::Begun(self.state.fill_begins(range)))
                }
                Fill::Begun(id) => Some(Fill::Read(id, self.server[page_of(number)].to_vec())),
                Fill::Read(id, bytes) => {
                    self.state.got(id, &[Segment::Data(Bytes::copy_from_slice(&bytes))]);
                    self.state.filling.retain(|fill| fill.0 != id);
                    (page.bytes, page.is_dirty, page.is_locked) = (Some(bytes), false, false);
                    None
                }
            };
        }

        fn write_back(&mut self, number: usize, for_who_has_it_locked: bool) {
            let page = &mut self.pages[number];
            match &mut page.writing_back {
                None if page.is_dirty && (!page.is_locked || for_who_has_it_locked) => {
                    page.is_dirty = false;
                    page.writing_back = Some(Back(page.bytes.clone().unwrap(), None));
                }
                None => {}
                Some(Back(bytes, runs @ None)) => {
                    *runs = Some(self.state.write_back_begins(page_of(number).start as u64, bytes));
                }
                Some(Back(bytes, Some((id, runs)))) => match runs.pop() {
                    Some(run) => {
                        let start = page_of(number).start;
                        self.server[start + run.start..start + run.end].copy_from_slice(&bytes[run]);
                    }
                    None => {
                        self.state.writing_back.retain(|back| back.0 != *id);
                        page.writing_back = None;
                    }
                },
            }
        }

        /// Drops the locked page, and returns whether it is dropped. The kernel first writes back the bytes that
        /// programs stored in the page.
        fn drops_page(&mut self, number: usize) -> bool {
            let page = &mut self.pages[number];
            // The kernel does not wait for a write-back in progress, because the write-back uses a copy of the page.
            if page.is_dirty {
                self.write_back(number, true);
                return false;
            }
            (page.bytes, page.is_locked) = (None, false);
            true
        }

        fn locks(&mut self, number: usize) -> bool {
            let page = &mut self.pages[number];
            !std::mem::replace(&mut page.is_locked, true)
        }

        fn begin_direct_write(&mut self, writer: usize, at: usize, byte: u8) {
            let (stage, start, value) = self.writers[writer];
            let number = start / PAGE as usize;
            let range = ByteRange { offset: start as u64, len: CELL as u64 };
            let next = match stage {
                Stage::Idle => {
                    self.writers[writer] = (Stage::MustDropPage, Model::cell(writer, at), byte);
                    return;
                }
                Stage::MustDropPage if self.locks(number) => Stage::Locked,
                // Before it drops the page for a direct write, the kernel waits for all write-backs of the page, so
                // advance the write-back.
                Stage::Locked if self.pages[number].writing_back.is_some() => {
                    self.write_back(number, true);
                    Stage::Locked
                }
                Stage::Locked if self.drops_page(number) => Stage::PageDropped,
                Stage::PageDropped => Stage::Begun(self.state.write_begins(range).0),
                Stage::Begun(id) if !self.state.has_to_wait(id) => {
                    self.server[start..start + CELL].fill(value);
                    self.model[start..start + CELL].fill(value);
                    Stage::Put(id)
                }
                Stage::Put(id) => self.state.written(id).map_or(Stage::Ends(id), |mark| Stage::Again(id, mark)),
                Stage::Again(id, mark) if self.locks(number) => Stage::AgainLocked(id, mark),
                Stage::AgainLocked(id, mark) if self.drops_page(number) => {
                    self.state.pages_dropped(range, mark);
                    Stage::Ends(id)
                }
                Stage::Ends(id) => {
                    self.state.writing.retain(|writing| writing.id != id);
                    // A program that reads through the mapping must see the written bytes, unless another direct write
                    // is in progress.
                    if let Some(bytes) = self.pages[number].bytes.as_ref().filter(|_| self.is_quiet()) {
                        assert_eq!(bytes[start % PAGE as usize], value, "the mapped bytes at {start}");
                    }
                    Stage::Idle
                }
                waits => waits,
            };
            self.writers[writer].0 = next;
        }

        /// Returns whether no direct write is in progress.
        fn is_quiet(&self) -> bool {
            self.state.writing.is_empty()
        }

        fn finish(&mut self) {
            while self.writers.iter().any(|writer| writer.0 != Stage::Idle)
                || self.pages.iter().any(|page| page.is_dirty || page.is_locked || page.writing_back.is_some())
            {
                for number in 0..2 {
                    self.fill(number);
                    self.write_back(number, false);
                    if self.writers[number].0 != Stage::Idle {
                        self.begin_direct_write(number, 0, 0);
                    }
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        /// Two direct writers and one program that stores to a mapping change different bytes of the same pages. Each
        /// byte keeps the last value written to it, in whatever order the kernel and the mount execute the writes.
        #[test]
        fn mapped_writes_and_other_writes_do_not_undo_each_other(steps in proptest::collection::vec((any::<u8>(), 0..4096usize, any::<u8>()), 1..300)) {
            let mut model = Model::new();
            for (actor, at, byte) in steps {
                model.step(actor, at, byte);
            }
            model.finish();
            prop_assert!(model.server == model.model);
        }
    }

    #[test]
    fn pages_are_written_whole_except_bytes_that_direct_writes_replaced() {
        let mut state = State { writers: 1, ..State::default() };
        let id = state.fill_begins(ByteRange { offset: PAGE, len: 2 * PAGE });
        state.got(id, &[Segment::Data(Bytes::from_static(&[7; 5000])), Segment::Hole(10)]);
        state.filling.clear();
        let mut page = vec![7; 4096];
        page[10] = 8;
        assert_eq!(state.write_back_begins(PAGE, &page).1, vec![0..4096]);
        // Begin a direct write to a range within page 1, while the write-back of page 1 is in progress.
        let (past, waits) = state.write_begins(ByteRange { offset: PAGE + 1000, len: 100 });
        assert!(waits, "a write-back of the page is in progress");
        state.writing_back.clear();
        assert!(!state.has_to_wait(past));
        page[1050] = 9;
        assert_eq!(state.write_back_begins(PAGE, &page).1, vec![0..1000, 1050..1051, 1100..4096]);
        let mark = state.written(past).expect("the kernel has the page cached");
        state.pages_dropped(ByteRange { offset: PAGE + 1000, len: 100 }, mark);
        state.writing.clear();
        assert_eq!(
            state.write_back_begins(PAGE, &page).1,
            vec![0..1000, 1100..4096],
            "the write-back may be in progress"
        );
        // This direct write begins before the end of the file and ends after it. Beyond the end, the kernel's page has
        // zeros.
        let (past, _) = state.write_begins(ByteRange { offset: 2 * PAGE + 900, len: 100 });
        let mut last = vec![0; 4096];
        last[..904].fill(7);
        last[950] = 1;
        assert_eq!(state.write_back_begins(2 * PAGE, &last).1, vec![0..900, 950..951, 1000..4096]);
        assert!(state.written(past).is_some());
        state.changed_otherwise();
        state.writing.clear();
        let (past, _) = state.write_begins(ByteRange::ALL);
        assert_eq!(state.written(past), None);
    }

    #[test]
    fn old_twins_are_dropped() {
        let mut state = State { writers: 1, ..State::default() };
        for number in 0..10_000 {
            let id = state.fill_begins(ByteRange { offset: number * PAGE, len: PAGE });
            state.got(id, &[Segment::Hole(PAGE)]);
            state.filling.clear();
        }
        assert!(state.twin(9_999).is_some() && state.twin(0).is_none());
        assert!((state.young.len() + state.old.len()) * PAGE as usize <= 2 * (GENERATION + PAGE as usize));
        // A file without writers does not change, so its pages get no twins.
        let mut state = State::default();
        let id = state.fill_begins(ByteRange { offset: 0, len: PAGE });
        let (past, _) = state.write_begins(ByteRange { offset: 1, len: 1 });
        state.got(id, &[Segment::Hole(PAGE)]);
        assert!(state.twin(0).is_none() && state.written(past).is_some());
    }
}
