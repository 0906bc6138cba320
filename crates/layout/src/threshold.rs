//! The write threshold: which requests go through the mgr, and which straight to the iods.
//!
//! A request shorter than T goes through the mgr, one of T or more straight to the iods; with T = 0 all go straight. (The
//! write threshold of Hildebrand, Ward and Honeyman, "Large files, small writes, and pNFS", 2006, section 5.3, which leaves
//! open what happens at T itself.)

mod auto;

pub use auto::Auto;

use types::ByteRange;

/// Shorter ranges than this, in the mean, make no list for their length.
const LIST_BLOCK: u64 = 4096;
/// So many ranges in a request make a list, whatever their length.
const LIST_RANGES: u64 = 32;

/// The longest threshold: no request is as long.
pub const ALWAYS_MGR: u64 = u64::MAX;

/// The shortest threshold: every request is as long.
pub const ALWAYS_STRAIGHT: u64 = 0;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// Through the mgr.
    Mgr,
    /// Straight to the iods.
    Direct,
}

/// The way of a request of `len` bytes under the threshold `t`.
pub fn path(len: u64, t: u64) -> Path {
    if len < t { Path::Mgr } else { Path::Direct }
}

/// Most bytes that go through the mgr to learn how long that takes.
const TRIED_MAX: u64 = 1 << 20;

/// Which threshold counts for what has gathered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// T.
    pub t: u64,
    /// The way that is tried with it, to learn how long it takes: straight with all of it, through the mgr with a request out of the
    /// longest range, as more might take long.
    pub tries: Option<Path>,
}

impl From<u64> for Verdict {
    fn from(t: u64) -> Self {
        Verdict { t, tries: None }
    }
}

/// Divides what has gathered as the verdict says; see [`divide`].
pub fn divide_by(
    ranges: &[ByteRange],
    verdict: Verdict,
    streamed: Option<u64>,
    requests: impl Fn(&[ByteRange]) -> u64,
) -> (Vec<ByteRange>, Vec<ByteRange>) {
    match verdict.tries {
        None => divide(ranges, verdict.t, streamed, requests),
        Some(Path::Direct) => divide(ranges, 0, streamed, requests),
        Some(Path::Mgr) => {
            let Some(at) = (0..ranges.len()).max_by_key(|at| ranges[*at].len) else { return Default::default() };
            let (longest, len) = (ranges[at], ranges[at].len.min(TRIED_MAX));
            let left = ByteRange { offset: longest.offset + len, len: longest.len - len };
            let mut others = ranges.to_vec();
            others.splice(at..=at, (!left.is_empty()).then_some(left));
            let (straight, mut through) = divide(&others, verdict.t, streamed, requests);
            let place = through.partition_point(|range| range.offset < longest.offset);
            through.insert(place, ByteRange { len, ..longest });
            (straight, through)
        }
    }
}

/// Divides what has gathered into what goes straight, and what goes through the mgr. A short range right behind `streamed`, one
/// past the last byte that went straight, is the tail of a stream and follows it: the iod that has the rest has it open.
///
/// Many short ranges make few requests when they go straight, as one takes ranges from all over an object (list I/O), and one
/// each through the mgr. So it is the length of the requests that counts for them: `requests` tells how many they would be, at
/// least one. Ranges shorter than a block in the mean an iod writes each by itself, and of blocks that are not whole it has to read the rest
/// first; the mgr may join them with those of others before. They go straight where that takes a request for [`LIST_RANGES`] and more of them:
/// what a program changed in mapped pages beside other clients is tens of thousands of such ranges.
pub fn divide(
    ranges: &[ByteRange],
    t: u64,
    streamed: Option<u64>,
    requests: impl Fn(&[ByteRange]) -> u64,
) -> (Vec<ByteRange>, Vec<ByteRange>) {
    let mut streamed = streamed;
    let (straight, through): (Vec<_>, Vec<ByteRange>) = ranges.iter().partition(|range| {
        let straight = path(range.len, t) == Path::Direct || streamed == Some(range.offset);
        if straight {
            streamed = Some(range.end());
        }
        straight
    });
    let bytes = through.iter().map(|range| range.len).sum::<u64>();
    let many = through.len() as u64;
    // One is no list; and of less than a request not even one is long enough.
    if many > 1 && path(bytes, t) == Path::Direct {
        let requests = requests(&through).max(1);
        let blocks = bytes >= LIST_BLOCK * many && path(bytes / requests, t) == Path::Direct;
        if blocks || many / requests >= LIST_RANGES {
            return (ranges.to_vec(), Vec::new());
        }
    }
    (straight, through)
}

/// How T is found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rule {
    /// It is this many bytes.
    Fixed(u64),
    /// It follows the crossing of the measured service times ([`Auto`]).
    Auto,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange { offset, len }
    }

    #[test]
    fn shorter_goes_through_the_mgr() {
        assert_eq!([path(0, 1), path(4095, 4096), path(1 << 40, ALWAYS_MGR)], [Path::Mgr; 3]);
        assert_eq!([path(0, 0), path(4096, 4096), path(1 << 20, 4096)], [Path::Direct; 3]);
    }

    #[test]
    fn every_range_goes_one_way() {
        let ranges = [range(0, 10), range(20, 100), range(120, 5), range(200, 5)];
        let alone = |ranges: &[ByteRange]| ranges.len() as u64;
        let (straight, through) = divide(&ranges, 50, None, alone);
        assert_eq!(straight, [range(20, 100), range(120, 5)]);
        assert_eq!(through, [range(0, 10), range(200, 5)]);
        assert_eq!(divide(&ranges, 50, Some(0), alone).0, [range(0, 10), range(20, 100), range(120, 5)]);
        assert_eq!(divide(&ranges, 0, None, alone).0, ranges);
        assert_eq!(divide(&ranges, ALWAYS_MGR, None, |_| 1).1, ranges);
    }

    #[test]
    fn a_way_is_tried_with_little() {
        const M: u64 = 1 << 20;
        let ranges = [range(0, 100), range(200, 8 * M), range(20 * M, 50), range(30 * M, 100)];
        let tries = |t, way| divide_by(&ranges, Verdict { t, tries: Some(way) }, None, |ranges| ranges.len() as u64);
        assert_eq!(tries(70, Path::Direct).0, ranges);
        let rest = range(200 + M, 7 * M);
        assert_eq!(tries(70, Path::Mgr), (vec![ranges[0], rest, ranges[3]], vec![range(200, M), ranges[2]]));
        assert_eq!(tries(200, Path::Mgr).1, [ranges[0], range(200, M), ranges[2], ranges[3]]);
        let one = |ranges: &[ByteRange]| divide_by(ranges, Verdict { t: 0, tries: Some(Path::Mgr) }, None, |_| 1);
        assert_eq!(one(&ranges[..1]), (vec![], vec![ranges[0]]));
        assert_eq!(one(&[]), (vec![], vec![]));
        assert_eq!(divide_by(&ranges, 70.into(), None, |_| 1), divide(&ranges, 70, None, |_| 1));
    }

    #[test]
    fn many_short_ranges_go_as_few_requests() {
        const K: u64 = 1 << 10;
        let ranges: Vec<_> = (0..64).map(|i| range(i * 100 * K, 4 * K)).collect();
        assert_eq!(divide(&ranges, 64 * K, None, |_| 4).0, ranges, "four lists of 64 KiB");
        assert_eq!(divide(&ranges, 64 * K + 1, None, |_| 4).1, ranges);
        assert_eq!(divide(&ranges, 256 * K + 1, None, |_| panic!("not even one list would be long enough")).1, ranges);
        let parts: Vec<_> = ranges.iter().map(|block| range(block.offset, 4 * K - 1)).collect();
        assert_eq!(divide(&parts, 64, None, |_| panic!("parts of blocks")).0, parts, "by themselves");
        assert_eq!(divide(&parts, 4 * K, None, |_| 4).1, parts, "sixteen in each");
        assert_eq!(divide(&parts, 4 * K, None, |_| 2).0, parts, "thirty-two in each");
        assert_eq!(divide(&parts, 256 * K, None, |_| panic!("not even one list would be long enough")).1, parts);
        assert_eq!(divide(&parts, ALWAYS_MGR, None, |_| panic!("never straight")).1, parts);
        // Those that are long enough by themselves do not help the others.
        let mixed = [range(0, 10), range(20, 1000), range(2000, 10)];
        assert_eq!(divide(&mixed, 100, None, |short| short.len() as u64).1, [mixed[0], mixed[2]]);
        assert_eq!(divide(&mixed[..1], 11, None, |_| 1).1, mixed[..1]);
    }
}
