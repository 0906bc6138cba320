//! Page twins: copies of pages from before programs changed them. The difference to the changed page shows which
//! bytes programs wrote ("twin" as in Munin's twin and diff).
//!
//! The kernel writes back whole pages. Between a program's write and the write-back, other clients may have changed
//! other bytes of these pages. The write-back must not overwrite these bytes. So the mount writes only the bytes that
//! differ from the page's twin (Carter, Bennett and Zwaenepoel, "Implementation and performance of Munin", 1991).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use types::ByteRange;

/// Size of a page in bytes.
pub(super) const PAGE: u64 = 4096;

/// Largest number of threads per file whose current write call is recorded.
const WRITING_MAX: usize = 4096;

/// The page twins of one file.
pub(super) struct PageTwins {
    /// The twins of the file's pages, by page number.
    pages: BTreeMap<u64, Twin>,
    /// The sequence number of the mount's last request to the kernel to drop pages of the file.
    age: u64,
    /// The file size that the kernel last received. A page that begins at or after this offset and has no twin
    /// contained only zeros before programs wrote to it.
    end: u64,
    /// A lower bound of the size that the kernel has cached for the file, or `None` if the mount knows no bound.
    min_cached_size: Option<u64>,
    /// The byte range that each thread is writing, by thread id.
    writing: HashMap<u32, ByteRange>,
}

/// The bytes of dirty pages that the mount has to write, and the growth of the file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Changed {
    /// The ranges of bytes that programs wrote, found by comparing each page with its twin.
    pub(super) runs: Vec<Range<usize>>,
    /// The end offset of the written-back bytes, if the write-back may have extended the file. The mount must then make
    /// the file at least this long.
    pub(super) end: Option<u64>,
}

/// A copy of a page that the kernel has or had cached.
struct Twin {
    /// The bytes of the page; in the last page of the file, up to the end of the file.
    bytes: Box<[u8]>,
    /// The value of `PageTwins::age` when the mount made this twin: the sequence number of the last drop request before
    /// that.
    since: u64,
}

/// Calls `take` for each maximal range within `places` in which `same` returns false for every index.
pub(super) fn differing(places: Range<usize>, same: impl Fn(usize) -> bool, mut take: impl FnMut(Range<usize>)) {
    let mut at = places.start;
    while at < places.end {
        let start = at + (at..places.end).take_while(|at| same(*at)).count();
        let end = start + (start..places.end).take_while(|at| !same(*at)).count();
        if start < end {
            take(start..end);
        }
        at = end;
    }
}

impl Default for PageTwins {
    fn default() -> Self {
        // The kernel may have read pages before this table of twins existed, and such a page has no twin. The mount
        // writes back a page without a twin as a whole if the page lies before `end`, so `end` begins as the largest
        // offset.
        PageTwins { pages: BTreeMap::new(), age: 0, end: u64::MAX, min_cached_size: None, writing: HashMap::new() }
    }
}

impl PageTwins {
    /// Returns the number of bytes of all pages with twins.
    pub(super) fn bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }

    /// Records that the kernel has received `end` as the size of the file.
    pub(super) fn reaches(&mut self, end: u64) {
        (self.end, self.min_cached_size) = (end, Some(end));
    }

    /// Records the byte range that a thread is about to write or has written, or `None` if the range is unknown.
    pub(super) fn thread_writes(&mut self, thread: u32, range: Option<ByteRange>) {
        if self.writing.len() >= WRITING_MAX {
            self.writing.clear();
        }
        match range {
            Some(range) => self.writing.insert(thread, range),
            None => self.writing.remove(&thread),
        };
    }

    /// Records bytes that the kernel reads from `offset` on. The bytes end at the end of the READ request or of the
    /// file.
    pub(super) fn got(&mut self, offset: u64, data: &[u8]) {
        // The kernel reads only whole pages. At any other offset, the first bytes of the page are unknown, so make no
        // twin.
        if !offset.is_multiple_of(PAGE) {
            return;
        }
        for (number, page) in (offset / PAGE..).zip(data.chunks(PAGE as usize)) {
            self.pages.insert(number, Twin { bytes: page.into(), since: self.age });
        }
    }

    /// Records that the kernel requested the bytes from `from` to `to`, which are after the end of the file, and has
    /// filled them with zeros.
    pub(super) fn got_nothing(&mut self, from: u64, to: u64) {
        for number in from.div_ceil(PAGE)..to.div_ceil(PAGE) {
            self.pages.insert(number, Twin { bytes: Box::default(), since: self.age });
        }
    }

    /// Extends the changed ranges of a page: if a system call wrote one of the changed bytes, all bytes of this call
    /// count as changed. The mount writes the bytes of one call as a whole, even where they equal the twin. So other
    /// clients do not find a mix of two writes.
    fn with_calls(&self, number: u64, (within, len): (usize, usize), mut runs: Vec<Range<usize>>) -> Vec<Range<usize>> {
        let page = ByteRange { offset: number * PAGE + within as u64, len: len as u64 };
        for call in self.writing.values().filter_map(|range| range.intersection(page)) {
            let start = (call.offset - page.offset) as usize;
            let mut whole = start..start + call.len as usize;
            let touches = |run: &Range<usize>| run.start < whole.end && whole.start < run.end;
            let touched: Vec<_> = runs.extract_if(.., |run| touches(run)).collect();
            if let (Some(first), Some(last)) = (touched.first(), touched.last()) {
                whole = whole.start.min(first.start)..whole.end.max(last.end);
                let at = runs.partition_point(|run| run.end <= whole.start);
                runs.insert(at, whole);
            }
        }
        runs
    }

    /// Records bytes that the kernel writes back, and returns the bytes that differ from the twin. A page before the
    /// end of the file that the kernel never read counts as changed: programs have written it as a whole.
    ///
    /// Zeros after the end of the file count as unchanged: the kernel may have added them, and other clients may have
    /// written these bytes. If the write-back extends the file, the result contains the new end separately, because
    /// the bytes before the new end may be such zeros.
    pub(super) fn changed(&mut self, offset: u64, data: &[u8]) -> Changed {
        let end = offset + data.len() as u64;
        let longer = self.min_cached_size.is_none_or(|min_cached_size| end > min_cached_size);
        let mut runs: Vec<Range<usize>> = Vec::new();
        let mut at = 0;
        while at < data.len() {
            let place = offset + at as u64;
            let within = (place % PAGE) as usize;
            let len = (PAGE as usize - within).min(data.len() - at);
            let mut found = Vec::new();
            self.changed_in_page(place / PAGE, within, &data[at..at + len], |run| found.push(run));
            if !self.writing.is_empty() {
                found = self.with_calls(place / PAGE, (within, len), found);
            }
            for run in found {
                let run = run.start + at..run.end + at;
                match runs.last_mut() {
                    Some(last) if last.end == run.start => last.end = run.end,
                    _ => runs.push(run),
                }
            }
            at += len;
        }
        Changed { runs, end: longer.then_some(end) }
    }

    /// Passes the changed ranges of one page to `take`; `data` begins at the offset `within` of the page. After the
    /// call, the twin contains `data`.
    fn changed_in_page(&mut self, number: u64, within: usize, data: &[u8], mut take: impl FnMut(Range<usize>)) {
        let is_new = !self.pages.contains_key(&number);
        let new = || Twin { bytes: Box::default(), since: self.age };
        let Twin { bytes: twin, .. } = self.pages.entry(number).or_insert_with(new);
        if is_new && number * PAGE < self.end {
            take(0..data.len());
        } else {
            let known = twin.get(within..).unwrap_or_default();
            differing(0..data.len(), |at| known.get(at).copied().unwrap_or(0) == data[at], take);
        }
        let end = number * PAGE + (within + data.len()) as u64;
        self.min_cached_size = self.min_cached_size.map(|min_cached_size| min_cached_size.max(end));
        let len = twin.len().max(within + data.len());
        let mut now = std::mem::take(twin).into_vec();
        now.resize(len, 0);
        now[within..within + data.len()].copy_from_slice(data);
        *twin = now.into();
    }

    /// Records that a range became zeros or was truncated, also in the kernel's pages. Removes the twins of pages
    /// that are entirely within the range.
    pub(super) fn zeroed(&mut self, from: u64, to: u64) {
        if to == u64::MAX {
            self.min_cached_size = self.min_cached_size.map(|min_cached_size| min_cached_size.min(from));
        }
        self.pages.retain(|number, twin| {
            let (start, page) = (number * PAGE, &mut twin.bytes);
            let (first, last) = (from.clamp(start, start + PAGE), to.clamp(start, start + PAGE));
            let len = page.len() as u64;
            page[(first - start).min(len) as usize..(last - start).min(len) as usize].fill(0);
            last - first < PAGE
        });
    }

    /// Begins a request to the kernel to drop its pages of the file. Returns the sequence number of the request, for
    /// [`PageTwins::pages_dropped`].
    pub(super) fn begin_dropping(&mut self) -> u64 {
        self.age += 1;
        self.age
    }

    /// Records that the kernel has dropped pages of a range: all pages that the kernel read before the drop request
    /// with the sequence number `age`, and perhaps newer pages.
    pub(super) fn pages_dropped(&mut self, age: u64, range: ByteRange) {
        let within = range.offset / PAGE..range.end().div_ceil(PAGE);
        self.pages.retain(|number, twin| twin.since >= age || !within.contains(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the ranges that the mount has to write for a write-back.
    fn runs(twins: &mut PageTwins, offset: u64, data: &[u8]) -> Vec<Range<usize>> {
        twins.changed(offset, data).runs
    }

    #[test]
    fn unchanged_bytes_are_not_written() {
        let mut twins = PageTwins::default();
        twins.got(PAGE, &[7; 5000]);
        let mut page = vec![7; 4096];
        page[10..20].fill(8);
        page[4000] = 9;
        assert_eq!(runs(&mut twins, PAGE, &page), [10..20, 4000..4001]);
        assert_eq!(runs(&mut twins, PAGE, &page), [0..0; 0], "it has been written");
        page[15] = 7;
        assert!(runs(&mut twins, PAGE, &page).into_iter().eq(std::iter::once(15..16)));
        // The last page of the file ended after 904 bytes. The kernel has filled the rest of the page with zeros, which
        // count as unchanged.
        let mut last = vec![7; 904];
        last.resize(1000, 0);
        last[950] = 1;
        let Changed { runs: changed, end } = twins.changed(2 * PAGE, &last);
        assert!(changed.into_iter().eq(std::iter::once(950..951)) && end == Some(2 * PAGE + 1000));
        assert_eq!(runs(&mut twins, 0, &[0; 100]), vec![0..100], "it never got that");
        twins.reaches(PAGE);
        let longer = Changed { runs: Vec::new(), end: Some(3 * PAGE + 100) };
        assert_eq!(twins.changed(3 * PAGE, &[0; 100]), longer, "and that was not there");
        // A program that truncates the file and extends it again finds zeros after the truncated end.
        twins.got(PAGE, &[5; 8192]);
        twins.zeroed(PAGE + 100, u64::MAX);
        let mut page = vec![5; 4096];
        page[100..200].fill(0);
        assert_eq!(runs(&mut twins, PAGE, &page), vec![200..4096], "what it was is written again");
        assert_eq!(twins.changed(2 * PAGE, &[0; 50]), Changed { runs: Vec::new(), end: Some(2 * PAGE + 50) });
        let age = twins.begin_dropping();
        twins.got(2 * PAGE, &[7; 3]);
        twins.pages_dropped(age, ByteRange::ALL);
        assert_eq!(twins.bytes(), PAGE, "pages read after the invalidation keep their twins");
        assert_eq!(runs(&mut twins, PAGE, &[1; 4096]), vec![0..4096]);
    }

    #[test]
    fn all_bytes_of_a_write_call_are_written_also_unchanged_ones() {
        let mut twins = PageTwins::default();
        twins.got(0, &[7; 8192]);
        let range = |offset, len| ByteRange::new(offset, len);
        twins.thread_writes(1, range(100, 8));
        twins.thread_writes(2, range(4090, 20));
        twins.thread_writes(3, range(200, 50));
        let mut pages = vec![7; 8192];
        // Two threads have changed bytes in their recorded write ranges. Byte 300 is in no recorded write range.
        // Thread 3 has changed nothing yet.
        pages[103] = 1;
        pages[105] = 1;
        pages[300] = 1;
        pages[4100] = 1;
        assert_eq!(
            runs(&mut twins, 0, &pages),
            [100..108, 300..301, 4096..4110],
            "in its first page the second has changed nothing"
        );
        twins.thread_writes(1, None);
        twins.thread_writes(2, range(98, 6));
        pages[103..106].fill(2);
        assert_eq!(runs(&mut twins, 0, &pages), vec![98..106]);
        // The threads write adjacent and overlapping ranges. The mount writes all bytes of these ranges, also byte 64,
        // which equals the twin.
        twins.thread_writes(1, range(0, 50));
        twins.thread_writes(2, range(40, 20));
        twins.thread_writes(3, range(60, 5));
        pages[..70].fill(3);
        pages[64] = 7;
        assert_eq!(runs(&mut twins, 0, &pages), vec![0..70]);
    }

    #[test]
    fn write_back_extends_a_truncated_file_no_further_than_programs_wrote() {
        let mut twins = PageTwins::default();
        // Another client has truncated the file to zero. A program writes ten bytes before the kernel receives the
        // new size.
        twins.reaches(1 << 20);
        twins.got(0, &[]);
        twins.got_nothing(0, PAGE);
        let mut page = vec![0; PAGE as usize];
        page[..10].fill(7);
        assert_eq!(runs(&mut twins, 0, &page), vec![0..10]);
        // Programs that write after the kernel's cached size extend the file. After a write-back, the kernel has the
        // new size cached.
        let longer = |end| Changed { runs: Vec::new(), end };
        assert_eq!(twins.changed(1 << 20, &[0; 100]), longer(Some((1 << 20) + 100)));
        twins.got_nothing(1 << 20, (1 << 20) + PAGE);
        assert_eq!(twins.changed(1 << 20, &[0; 100]), longer(None));
        assert_eq!(twins.changed(1 << 20, &[0; 101]), longer(Some((1 << 20) + 101)));
    }

    #[test]
    fn pages_read_during_an_invalidation_have_twins() {
        let mut twins = PageTwins::default();
        twins.got(0, &[1; 8192]);
        let age = twins.begin_dropping();
        twins.got(0, &[3; 4096]);
        twins.pages_dropped(age, ByteRange { offset: 5, len: 1 });
        assert_eq!(runs(&mut twins, 0, &[3; 4096]), [0..0; 0]);
        assert_eq!(runs(&mut twins, PAGE, &[1; 4096]), [0..0; 0], "it was to forget the first one");
        let age = twins.begin_dropping();
        twins.pages_dropped(age, ByteRange { offset: PAGE, len: 1 });
        assert_eq!(runs(&mut twins, PAGE, &[1; 4096]), vec![0..4096]);
    }

    /// An event in a test in which two clients write a file of three pages. Only one of the clients uses a page cache.
    #[derive(Clone, Debug)]
    enum Step {
        /// A program writes through the page cache. The kernel reads a page before the program writes a part of the
        /// page.
        Write(usize, usize, u8),
        /// Another client makes a direct write to the file.
        Other(usize, usize, u8),
        /// The kernel writes back its pages of the file, and keeps them.
        Back,
        /// The kernel writes back its pages of the file, and drops them.
        Forget,
    }

    fn step() -> impl Strategy<Value = Step> {
        let run = || (0..3 * PAGE as usize, 1..6000usize);
        prop_oneof![
            3 => (run(), any::<u8>()).prop_map(|((at, len), byte)| Step::Write(at, len, byte)),
            3 => (run(), any::<u8>()).prop_map(|((at, len), byte)| Step::Other(at, len, byte)),
            1 => Just(Step::Back),
            2 => Just(Step::Forget),
        ]
    }

    proptest! {
        /// Every byte has the value of its last writer, even if both clients changed the same page. A byte that both
        /// clients wrote since the kernel last dropped all pages may have either value.
        #[test]
        fn bytes_of_other_clients_are_never_overwritten(steps in proptest::collection::vec(step(), 1..40)) {
            let len = 3 * PAGE as usize;
            let (mut server, mut model) = (vec![0u8; len], vec![0u8; len]);
            // For each byte, whether this mount (`here`) and the other client (`there`) have written it since the
            // kernel last dropped all pages.
            let (mut here, mut there) = (vec![false; len], vec![false; len]);
            let mut cache: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
            let mut twins = PageTwins::default();
            let size = PAGE as usize;
            for step in steps.into_iter().chain([Step::Forget]) {
                match step {
                    Step::Write(at, count, byte) => {
                        let range = at..(at + count).min(len);
                        for number in range.start / size..range.end.div_ceil(size) {
                            let bounds = number * size..(number + 1) * size;
                            let whole = range.start <= bounds.start && range.end >= bounds.end;
                            let page = cache.entry(number).or_insert_with(|| {
                                if !whole {
                                    twins.got(bounds.start as u64, &server[bounds.clone()]);
                                }
                                server[bounds.clone()].to_vec()
                            });
                            let part = range.start.max(bounds.start)..range.end.min(bounds.end);
                            page[part.start - bounds.start..part.end - bounds.start].fill(byte);
                        }
                        model[range.clone()].fill(byte);
                        here[range].fill(true);
                    }
                    Step::Other(at, count, byte) => {
                        let range = at..(at + count).min(len);
                        server[range.clone()].fill(byte);
                        model[range.clone()].fill(byte);
                        there[range].fill(true);
                    }
                    Step::Back | Step::Forget => {
                        let age = twins.begin_dropping();
                        for (number, page) in &cache {
                            let offset = number * size;
                            for run in twins.changed(offset as u64, page).runs {
                                server[offset + run.start..offset + run.end].copy_from_slice(&page[run]);
                            }
                        }
                        if matches!(step, Step::Forget) {
                            twins.pages_dropped(age, ByteRange::ALL);
                            cache.clear();
                            for at in 0..len {
                                let both = here[at] && there[at];
                                prop_assert!(both || server[at] == model[at], "byte {at}");
                                model[at] = server[at];
                            }
                            here.fill(false);
                            there.fill(false);
                        }
                    }
                }
            }
        }

        /// Two clients extend a file. Before most writes, the kernel writes back and drops its pages, and receives the
        /// size of the file; before the other writes, the kernel does neither. Bytes that only one client wrote keep
        /// the value of this client.
        #[test]
        fn extending_a_file_does_not_overwrite_bytes_of_other_clients(
            steps in proptest::collection::vec((any::<bool>(), any::<bool>(), 0..4 * PAGE as usize, 1..6000usize, any::<u8>()), 1..40),
        ) {
            let (size, most) = (PAGE as usize, 6 * PAGE as usize);
            let (mut server, mut cache): (Vec<u8>, BTreeMap<usize, Vec<u8>>) = Default::default();
            let mut writers = vec![Vec::new(); most];
            let mut twins = PageTwins::default();
            twins.reaches(0);
            let mut kernel_len = 0;
            let put = |server: &mut Vec<u8>, at: usize, data: &[u8]| {
                server.resize(server.len().max(at + data.len()), 0);
                server[at..at + data.len()].copy_from_slice(data);
            };
            for (here, close, at, len, byte) in steps.into_iter().chain([(true, false, 0, 0, 0)]) {
                let range = at..at + len;
                writers[range.clone()].iter_mut().for_each(|all| all.push((here, byte)));
                if !here {
                    put(&mut server, at, &vec![byte; len]);
                    continue;
                }
                if !close {
                    let age = twins.begin_dropping();
                    for (number, page) in std::mem::take(&mut cache) {
                        let whole = &page[..size.min(kernel_len - number * size)];
                        let Changed { runs, end } = twins.changed((number * size) as u64, whole);
                        for run in runs {
                            put(&mut server, number * size + run.start, &whole[run]);
                        }
                        server.resize(server.len().max(end.unwrap_or(0) as usize), 0);
                    }
                    twins.pages_dropped(age, ByteRange::ALL);
                    kernel_len = server.len();
                    twins.reaches(kernel_len as u64);
                }
                if len == 0 {
                    continue;
                }
                for number in range.start / size..range.end.div_ceil(size) {
                    let bounds = number * size..(number + 1) * size;
                    let whole = range.start <= bounds.start && range.end >= bounds.end;
                    let page = cache.entry(number).or_insert_with(|| {
                        let reads = !whole && bounds.start < kernel_len;
                        let mut page = if reads { server.get(bounds.start..).unwrap_or_default().to_vec() } else { Vec::new() };
                        page.truncate(size);
                        if reads {
                            twins.got(bounds.start as u64, &page);
                            twins.got_nothing((bounds.start + page.len()) as u64, bounds.end as u64);
                        }
                        page.resize(size, 0);
                        page
                    });
                    let part = range.start.max(bounds.start)..range.end.min(bounds.end);
                    page[part.start - bounds.start..part.end - bounds.start].fill(byte);
                }
                kernel_len = kernel_len.max(range.end);
            }
            let longest = writers.iter().rposition(|all| !all.is_empty()).map_or(0, |last| last + 1);
            prop_assert_eq!(server.len(), longest);
            for (at, all) in writers[..longest].iter().enumerate() {
                let mut may: Vec<u8> = all.last().map(|last| last.1).into_iter().collect();
                if all.iter().any(|(here, _)| *here) && all.iter().any(|(here, _)| !here) {
                    may.extend(all.iter().map(|(_, byte)| byte));
                    may.push(0);
                }
                may.extend(all.is_empty().then_some(0));
                prop_assert!(may.contains(&server[at]), "byte {at}: {} and not {may:?}", server[at]);
            }
        }
    }
}
