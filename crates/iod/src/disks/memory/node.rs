//! One file of the simulated disk: its current content, and the versions of its pages and length that may survive a
//! power cut.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a page: the unit of storage and of holes.
pub(super) const PAGE: u64 = 4096;
const SECTOR: usize = 512;
/// Maximum number of versions of a page that the file keeps between two syncs: the durable version and the first
/// versions after it.
const VERSIONS: usize = 4;

type Page = Arc<[u8; PAGE as usize]>;

/// Older contents of a page: its content at the last sync, and its contents after that sync except the current content.
/// `None` is a hole.
#[derive(Clone, Default)]
struct OldVersions {
    versions: Vec<Option<Page>>,
    /// Whether a sync of the page failed and no write has changed the page since then. A later sync does not write such
    /// a page.
    lost: bool,
}

/// A file of the simulated disk.
#[derive(Clone, Default)]
pub(super) struct Node {
    pages: BTreeMap<u64, Page>,
    /// Pages for which `reserve` allocated storage, with or without content. The value of an entry says whether the
    /// allocation is durable.
    reserved: BTreeMap<u64, bool>,
    len: u64,
    /// Earlier versions of each page that changed since the last sync.
    past: BTreeMap<u64, OldVersions>,
    /// Earlier lengths of the file since the last sync, without the current length. The first of them is the durable
    /// length.
    lens: Vec<u64>,
    /// Whether a failed sync lost the last bytes of the file. If so, a later sync does not make the current length
    /// durable.
    lens_lost: bool,
    /// Number of open handles.
    pub(super) open: u32,
    /// Whether the file has a name.
    pub(super) linked: bool,
    pub(super) locked: bool,
}

impl Node {
    /// Makes an empty file with a name.
    pub(super) fn new() -> Self {
        Node { linked: true, ..Node::default() }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the number of pages of storage that the file uses.
    pub(super) fn pages(&self) -> u64 {
        let empty = self.reserved.keys().filter(|page| !self.pages.contains_key(page)).count();
        (self.pages.len() + empty) as u64
    }

    /// Allocates storage for the pages of a file range, and calls `take` for each newly allocated page, so that the
    /// caller counts the page. Returns false at the first page for which `take` finds no free space.
    pub(super) fn reserve(&mut self, offset: u64, len: u64, take: &mut dyn FnMut() -> bool) -> bool {
        let end = offset.saturating_add(len);
        for page in offset / PAGE..end.div_ceil(PAGE) {
            if self.is_stored(page * PAGE, PAGE) {
                self.reserved.entry(page).or_insert(false);
            } else if take() {
                self.reserved.insert(page, false);
            } else {
                return false;
            }
        }
        if end > self.len {
            self.change_len(end);
        }
        true
    }

    pub(super) fn is_stored(&self, offset: u64, len: u64) -> bool {
        let mut pages = offset / PAGE..offset.saturating_add(len).div_ceil(PAGE);
        pages.all(|page| self.pages.contains_key(&page) || self.reserved.contains_key(&page))
    }

    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        let len = self.len.saturating_sub(offset).min(buffer.len() as u64) as usize;
        for (page, within, at, n) in parts(offset, len) {
            match self.pages.get(&page) {
                Some(bytes) => buffer[at..at + n].copy_from_slice(&bytes[within..within + n]),
                None => buffer[at..at + n].fill(0),
            }
        }
        len
    }

    /// Writes `data` to the file, and calls `take` for each newly allocated page, so that the caller counts the page.
    /// Stops at the first page for which `take` finds no free space; returns the number of bytes written.
    pub(super) fn write(&mut self, data: &[u8], offset: u64, take: &mut dyn FnMut() -> bool) -> usize {
        let mut done = 0;
        for (page, within, at, n) in parts(offset, data.len()) {
            if !self.is_stored(page * PAGE, PAGE) && !take() {
                break;
            }
            self.remember(page);
            let bytes = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(bytes)[within..within + n].copy_from_slice(&data[at..at + n]);
            done = at + n;
        }
        let end = offset + done as u64;
        if done > 0 && end > self.len {
            self.change_len(end);
        }
        // A failed sync may have lost the last bytes of the file. After a write up to the end of the file, the next
        // sync writes these bytes and the length again.
        self.lens_lost &= done == 0 || end < self.len;
        done
    }

    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.clear(len, self.len.next_multiple_of(PAGE));
        }
        if len != self.len {
            self.change_len(len);
        }
    }

    pub(super) fn punch(&mut self, offset: u64, len: u64) {
        self.clear(offset, offset.saturating_add(len).min(self.len));
    }

    /// Zeroes the bytes of the file from `start` to `end`. Pages that lie wholly in this range become holes.
    fn clear(&mut self, start: u64, end: u64) {
        let whole = start.div_ceil(PAGE)..end / PAGE;
        self.reserved.retain(|page, _| !whole.contains(page));
        let pages: Vec<u64> = self.pages.range(start / PAGE..end.div_ceil(PAGE)).map(|(page, _)| *page).collect();
        for page in pages {
            self.remember(page);
            let from = start.max(page * PAGE) - page * PAGE;
            let to = end.min((page + 1) * PAGE) - page * PAGE;
            if to - from == PAGE {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                Arc::make_mut(bytes)[from as usize..to as usize].fill(0);
            }
        }
    }

    fn change_len(&mut self, len: u64) {
        if self.lens.len() < VERSIONS {
            self.lens.push(self.len);
        }
        self.len = len;
    }

    fn remember(&mut self, page: u64) {
        let past = self.past.entry(page).or_default();
        if past.versions.len() < VERSIONS {
            past.versions.push(self.pages.get(&page).cloned());
        }
        past.lost = false;
    }

    pub(super) fn sync(&mut self) {
        self.past.retain(|_, past| past.lost);
        self.reserved.values_mut().for_each(|durable| *durable = true);
        if !self.lens_lost {
            self.lens.clear();
        }
    }

    /// Applies a failed sync. Later syncs do not write the pages that this sync should have written, unless a write
    /// changes them again. In the same way, later syncs do not make a length durable that grew before the failed sync.
    /// Truncations survive, because they are in the log of the file system.
    pub(super) fn lose(&mut self) {
        self.past.values_mut().for_each(|past| past.lost = true);
        self.lens_lost |= self.lens.iter().any(|len| *len < self.len);
    }

    pub(super) fn next_data(&self, offset: u64) -> Option<u64> {
        let (page, _) = self.pages.range(offset / PAGE..).next()?;
        Some(offset.max(page * PAGE)).filter(|at| *at < self.len)
    }

    pub(super) fn next_hole(&self, offset: u64) -> Option<u64> {
        if offset >= self.len {
            return None;
        }
        let first = offset / PAGE;
        let run = (first..).zip(self.pages.range(first..)).take_while(|(want, (page, _))| want == *page).count();
        Some(offset.max((first + run as u64) * PAGE).min(self.len))
    }

    pub(super) fn spoil(&mut self, offset: u64, xor: u8) -> bool {
        let Some(page) = self.pages.get_mut(&(offset / PAGE)).filter(|_| offset < self.len) else { return false };
        Arc::make_mut(page)[(offset % PAGE) as usize] ^= xor;
        true
    }

    /// Replaces the content of the file by the content that remains after a power cut.
    pub(super) fn power_cut(&mut self, choose: &mut dyn FnMut(u64) -> u64) {
        for (number, past) in std::mem::take(&mut self.past) {
            let newest = self.pages.remove(&number);
            let mut versions = past.versions;
            versions.push(newest);
            if let Some(page) = torn(versions, choose) {
                self.pages.insert(number, page);
            }
        }
        let mut lens = std::mem::take(&mut self.lens);
        if !lens.is_empty() {
            lens.push(self.len);
            self.len = lens[below(choose, lens.len())];
        }
        self.reserved.retain(|page, durable| *durable && page * PAGE < self.len);
        // Zero the bytes beyond the length that survived. A real file system does not expose old bytes there, even if
        // the file grows later.
        self.clear(self.len, u64::MAX / PAGE * PAGE);
        self.past.clear();
        self.lens_lost = false;
    }
}

/// Returns one version of a page, or a page whose sectors come from several versions.
fn torn(versions: Vec<Option<Page>>, choose: &mut dyn FnMut(u64) -> u64) -> Option<Page> {
    let count = versions.len();
    if choose(4) != 0 {
        return versions.into_iter().nth(below(choose, count)).flatten();
    }
    let mut page = [0; PAGE as usize];
    for (index, bytes) in page.chunks_exact_mut(SECTOR).enumerate() {
        if let Some(version) = &versions[below(choose, count)] {
            bytes.copy_from_slice(&version[index * SECTOR..(index + 1) * SECTOR]);
        }
    }
    Some(Arc::new(page))
}

fn below(choose: &mut dyn FnMut(u64) -> u64, bound: usize) -> usize {
    (choose(bound as u64) as usize).min(bound - 1)
}

/// Splits a byte range at page boundaries. Each item is page number, offset in the page, offset in the range, and
/// length.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at == len {
            return None;
        }
        let start = offset + at as u64;
        let within = (start % PAGE) as usize;
        let n = (PAGE as usize - within).min(len - at);
        let part = (start / PAGE, within, at, n);
        at += n;
        Some(part)
    })
}
