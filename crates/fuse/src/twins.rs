//! What the kernel had in the pages of a file before programs changed them: the *twins* by which changed bytes are told from others.
//!
//! The kernel writes whole pages back. Bytes of them that no program here has written may have been changed by others since, and must not be
//! written over: only what differs from the twin of a page is (Carter, Bennett and Zwaenepoel, "Implementation and performance of Munin", 1991).

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use types::ByteRange;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// Most threads of which is known what they write to one file.
const WRITING_MAX: usize = 4096;

/// The twins of one file.
pub(crate) struct Twins {
    /// By the number of the page.
    pages: BTreeMap<u64, Twin>,
    /// Counts how often the kernel was told to forget its pages.
    age: u64,
    /// How long the file was when the kernel was last told. What it has not got behind that, it has made of zeros.
    end: u64,
    /// How long the kernel thinks that the file is at least, if that is known.
    believed: Option<u64>,
    /// What threads are writing.
    writing: HashMap<u32, ByteRange>,
}

/// What of bytes that the kernel writes back is news.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Changed {
    /// The places of bytes that programs wrote, as far as they differ from what was there.
    pub(crate) runs: Vec<Range<usize>>,
    /// The file reaches to here at least by what programs wrote, if the kernel did not believe that before.
    pub(crate) end: Option<u64>,
}

/// What the kernel has or had of a page.
struct Twin {
    /// As far as the file reached.
    bytes: Box<[u8]>,
    /// Since which age.
    since: u64,
}

/// Hands over the runs of these places that are not the same.
pub(crate) fn differing(places: Range<usize>, same: impl Fn(usize) -> bool, mut take: impl FnMut(Range<usize>)) {
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

impl Default for Twins {
    fn default() -> Self {
        // Pages of before this began are programs' as a whole.
        Twins { pages: BTreeMap::new(), age: 0, end: u64::MAX, believed: None, writing: HashMap::new() }
    }
}

impl Twins {
    /// Bytes of all.
    pub(crate) fn bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }

    /// The kernel knows nothing but that the file is so long.
    pub(crate) fn reaches(&mut self, end: u64) {
        (self.end, self.believed) = (end, Some(end));
    }

    /// A thread is about to write these bytes, or it is not known which; or it has written them.
    pub(crate) fn thread_writes(&mut self, thread: u32, range: Option<ByteRange>) {
        if self.writing.len() >= WRITING_MAX {
            self.writing.clear();
        }
        match range {
            Some(range) => self.writing.insert(thread, range),
            None => self.writing.remove(&thread),
        };
    }

    /// The kernel gets these bytes from `offset` on. They end where it asked for no more, or where the file does.
    pub(crate) fn got(&mut self, offset: u64, data: &[u8]) {
        // It asks for nothing else; of the rest of a page nothing would be known.
        if !offset.is_multiple_of(PAGE) {
            return;
        }
        for (number, page) in (offset / PAGE..).zip(data.chunks(PAGE as usize)) {
            self.pages.insert(number, Twin { bytes: page.into(), since: self.age });
        }
    }

    /// The file ended before these places that the kernel asked for as well: it has made zeros of all between.
    pub(crate) fn got_nothing(&mut self, from: u64, to: u64) {
        for number in from.div_ceil(PAGE)..to.div_ceil(PAGE) {
            self.pages.insert(number, Twin { bytes: Box::default(), since: self.age });
        }
    }

    /// The runs in a page, each with all that was written with it: what one call writes goes as a whole, also where it writes what was there, lest others
    /// find bytes of two writes.
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

    /// The kernel writes these bytes back: which of them are others than it had. All of a page that it never got within the
    /// file: programs have written that as a whole. Behind the end, zeros are nobody's: they may be what the kernel has put
    /// between the end and what was written, and other clients may have written there. That the file has become longer is told
    /// apart, as not even the last byte is a program's for sure: it may be that of a page in front of what another program wrote.
    pub(crate) fn changed(&mut self, offset: u64, data: &[u8]) -> Changed {
        let end = offset + data.len() as u64;
        let longer = self.believed.is_none_or(|believed| end > believed);
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

    /// As [`Twins::changed`], in one page from `within` on, which has these bytes from now on.
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
        self.believed = self.believed.map(|believed| believed.max(end));
        let len = twin.len().max(within + data.len());
        let mut now = std::mem::take(twin).into_vec();
        now.resize(len, 0);
        now[within..within + data.len()].copy_from_slice(data);
        *twin = now.into();
    }

    /// A range was made zeros, or cut off, in what the kernel has, too: it has nothing of whole pages there any more.
    pub(crate) fn zeroed(&mut self, from: u64, to: u64) {
        if to == u64::MAX {
            self.believed = self.believed.map(|believed| believed.min(from));
        }
        self.pages.retain(|number, twin| {
            let (start, page) = (number * PAGE, &mut twin.bytes);
            let (first, last) = (from.clamp(start, start + PAGE), to.clamp(start, start + PAGE));
            let len = page.len() as u64;
            page[(first - start).min(len) as usize..(last - start).min(len) as usize].fill(0);
            last - first < PAGE
        });
    }

    /// The kernel is about to be told to forget its pages; to be handed to [`Twins::forgotten`] when it has.
    pub(crate) fn forgetting(&mut self) -> u64 {
        self.age += 1;
        self.age
    }

    /// It has forgotten what it had by then of the pages that have bytes of a range, and perhaps what it got meanwhile.
    pub(crate) fn forgotten(&mut self, age: u64, range: ByteRange) {
        let within = range.offset / PAGE..range.end().div_ceil(PAGE);
        self.pages.retain(|number, twin| twin.since >= age || !within.contains(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The runs of what is written back.
    fn runs(twins: &mut Twins, offset: u64, data: &[u8]) -> Vec<Range<usize>> {
        twins.changed(offset, data).runs
    }

    #[test]
    fn what_was_not_changed_is_not_written() {
        let mut twins = Twins::default();
        twins.got(PAGE, &[7; 5000]);
        let mut page = vec![7; 4096];
        page[10..20].fill(8);
        page[4000] = 9;
        assert_eq!(runs(&mut twins, PAGE, &page), [10..20, 4000..4001]);
        assert_eq!(runs(&mut twins, PAGE, &page), [0..0; 0], "it has been written");
        page[15] = 7;
        assert!(runs(&mut twins, PAGE, &page).into_iter().eq(std::iter::once(15..16)));
        // The second page ended after 904 bytes: what lies behind are zeros of the kernel's.
        let mut last = vec![7; 904];
        last.resize(1000, 0);
        last[950] = 1;
        let Changed { runs: changed, end } = twins.changed(2 * PAGE, &last);
        assert!(changed.into_iter().eq(std::iter::once(950..951)) && end == Some(2 * PAGE + 1000));
        assert_eq!(runs(&mut twins, 0, &[0; 100]), vec![0..100], "it never got that");
        twins.reaches(PAGE);
        let longer = Changed { runs: Vec::new(), end: Some(3 * PAGE + 100) };
        assert_eq!(twins.changed(3 * PAGE, &[0; 100]), longer, "and that was not there");
        // Whoever cuts the file and makes it longer again has zeros there.
        twins.got(PAGE, &[5; 8192]);
        twins.zeroed(PAGE + 100, u64::MAX);
        let mut page = vec![5; 4096];
        page[100..200].fill(0);
        assert_eq!(runs(&mut twins, PAGE, &page), vec![200..4096], "what it was is written again");
        assert_eq!(twins.changed(2 * PAGE, &[0; 50]), Changed { runs: Vec::new(), end: Some(2 * PAGE + 50) });
        let age = twins.forgetting();
        twins.got(2 * PAGE, &[7; 3]);
        twins.forgotten(age, ByteRange::ALL);
        assert_eq!(twins.bytes(), PAGE, "what it got since stays");
        assert_eq!(runs(&mut twins, PAGE, &[1; 4096]), vec![0..4096]);
    }

    #[test]
    fn what_a_call_writes_goes_as_a_whole() {
        let mut twins = Twins::default();
        twins.got(0, &[7; 8192]);
        let range = |offset, len| ByteRange::new(offset, len);
        twins.thread_writes(1, range(100, 8));
        twins.thread_writes(2, range(4090, 20));
        twins.thread_writes(3, range(200, 50));
        let mut pages = vec![7; 8192];
        // Two of them, and what no call is known to have written; the third one has not come yet.
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
        // Beside one another, and over one another.
        twins.thread_writes(1, range(0, 50));
        twins.thread_writes(2, range(40, 20));
        twins.thread_writes(3, range(60, 5));
        pages[..70].fill(3);
        pages[64] = 7;
        assert_eq!(runs(&mut twins, 0, &pages), vec![0..70]);
    }

    #[test]
    fn a_file_that_others_have_cut_is_made_no_longer_than_programs_do() {
        let mut twins = Twins::default();
        // Others cut it to nothing, and the kernel has not heard yet when a program writes ten bytes.
        twins.reaches(1 << 20);
        twins.got(0, &[]);
        twins.got_nothing(0, PAGE);
        let mut page = vec![0; PAGE as usize];
        page[..10].fill(7);
        assert_eq!(runs(&mut twins, 0, &page), vec![0..10]);
        // Behind what the kernel believes, it is programs that make it longer; what it wrote back once it believes.
        let longer = |end| Changed { runs: Vec::new(), end };
        assert_eq!(twins.changed(1 << 20, &[0; 100]), longer(Some((1 << 20) + 100)));
        twins.got_nothing(1 << 20, (1 << 20) + PAGE);
        assert_eq!(twins.changed(1 << 20, &[0; 100]), longer(None));
        assert_eq!(twins.changed(1 << 20, &[0; 101]), longer(Some((1 << 20) + 101)));
    }

    #[test]
    fn pages_that_the_kernel_gets_while_it_forgets_others_have_twins() {
        let mut twins = Twins::default();
        twins.got(0, &[1; 8192]);
        let age = twins.forgetting();
        twins.got(0, &[3; 4096]);
        twins.forgotten(age, ByteRange { offset: 5, len: 1 });
        assert_eq!(runs(&mut twins, 0, &[3; 4096]), [0..0; 0]);
        assert_eq!(runs(&mut twins, PAGE, &[1; 4096]), [0..0; 0], "it was to forget the first one");
        let age = twins.forgetting();
        twins.forgotten(age, ByteRange { offset: PAGE, len: 1 });
        assert_eq!(runs(&mut twins, PAGE, &[1; 4096]), vec![0..4096]);
    }

    /// What happens to a file of three pages that two write, one of them through a page cache.
    #[derive(Clone, Debug)]
    enum Step {
        /// A program writes through the page cache: as there, pages are got before parts of them are written.
        Write(usize, usize, u8),
        /// Somebody else writes past it.
        Other(usize, usize, u8),
        /// The kernel writes its pages back, and keeps them.
        Back,
        /// And forgets them.
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
        /// Every byte is what its last writer made it, whatever was written to the same page by whom; where both wrote it since the kernel
        /// forgot its pages, it may be either's.
        #[test]
        fn bytes_of_others_are_never_written_over(steps in proptest::collection::vec(step(), 1..40)) {
            let len = 3 * PAGE as usize;
            let (mut server, mut model) = (vec![0u8; len], vec![0u8; len]);
            // Whether bytes were written here, and by others, since the kernel last knew nothing.
            let (mut here, mut there) = (vec![false; len], vec![false; len]);
            let mut cache: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
            let mut twins = Twins::default();
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
                        let age = twins.forgetting();
                        for (number, page) in &cache {
                            let offset = number * size;
                            for run in twins.changed(offset as u64, page).runs {
                                server[offset + run.start..offset + run.end].copy_from_slice(&page[run]);
                            }
                        }
                        if matches!(step, Step::Forget) {
                            twins.forgotten(age, ByteRange::ALL);
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

        /// A file that two make longer: before most writes the kernel hands on what it has, forgets it, and is told how long the file is; some come
        /// so close upon one another that it has not. Bytes that only one of them wrote are that one's.
        #[test]
        fn who_lengthens_a_file_leaves_to_others_what_is_theirs(
            steps in proptest::collection::vec((any::<bool>(), any::<bool>(), 0..4 * PAGE as usize, 1..6000usize, any::<u8>()), 1..40),
        ) {
            let (size, most) = (PAGE as usize, 6 * PAGE as usize);
            let (mut server, mut cache): (Vec<u8>, BTreeMap<usize, Vec<u8>>) = Default::default();
            let mut writers = vec![Vec::new(); most];
            let mut twins = Twins::default();
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
                    let age = twins.forgetting();
                    for (number, page) in std::mem::take(&mut cache) {
                        let whole = &page[..size.min(kernel_len - number * size)];
                        let Changed { runs, end } = twins.changed((number * size) as u64, whole);
                        for run in runs {
                            put(&mut server, number * size + run.start, &whole[run]);
                        }
                        server.resize(server.len().max(end.unwrap_or(0) as usize), 0);
                    }
                    twins.forgotten(age, ByteRange::ALL);
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
