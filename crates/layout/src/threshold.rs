//! The write threshold: which requests take the mgr path, and which requests take the direct path to the iods.
//!
//! A request of fewer than T bytes takes the mgr path; a longer request, or one of exactly T bytes, takes the direct
//! path. With T = 0 all requests take the direct path. (Source: Hildebrand, Ward and Honeyman, "Large files, small
//! writes, and pNFS", 2006, section 5.3. The paper does not define the path of a request of exactly T bytes.)

mod auto;

pub use auto::Auto;

use types::ByteRange;

/// Block size of the iods' file systems, in bytes. Ranges whose mean length is below a block take the direct path as
/// list I/O only if each request has at least [`LIST_RANGES`] ranges.
const LIST_BLOCK: u64 = 4096;
/// A list I/O request with at least this many ranges takes the direct path, however short the ranges are.
const LIST_RANGES: u64 = 32;

/// The largest write threshold, with which all requests take the mgr path.
pub const ALWAYS_MGR: u64 = u64::MAX;

/// The smallest write threshold, with which all requests take the direct path.
pub const ALWAYS_DIRECT: u64 = 0;

/// The path that a request takes between the client and the objects of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// The request goes to the mgr, which reads or writes the objects on the iods.
    Mgr,
    /// The request goes directly to the iods.
    Direct,
}

/// Returns the path of a request of `len` bytes if the write threshold is `t`.
pub fn path(len: u64, t: u64) -> Path {
    if len < t { Path::Mgr } else { Path::Direct }
}

/// Maximum number of bytes in a request that the client sends on the mgr path only to measure its service time (probe).
const PROBE_MAX: u64 = 1 << 20;

/// The write threshold for a set of gathered ranges, and whether to send some of these ranges as a probe on the path
/// that the threshold does not select (to measure the service time of this path).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThresholdChoice {
    /// The threshold T in bytes: requests of fewer than T bytes take the mgr path.
    pub t: u64,
    /// The path to probe, to measure the service time of this path; `None` for no probe. A probe of the direct path
    /// sends all gathered bytes on the direct path. A probe of the mgr path sends only one request, from the longest
    /// range, because more bytes might take long.
    pub probe: Option<Path>,
}

impl From<u64> for ThresholdChoice {
    fn from(t: u64) -> Self {
        ThresholdChoice { t, probe: None }
    }
}

/// Divides gathered ranges into ranges for the direct path and ranges for the mgr path. If `choice` asks for a probe,
/// assigns ranges to the path to probe. See [`divide`].
pub fn divide_by(
    ranges: &[ByteRange],
    choice: ThresholdChoice,
    streamed: Option<u64>,
    requests: impl Fn(&[ByteRange]) -> u64,
) -> (Vec<ByteRange>, Vec<ByteRange>) {
    match choice.probe {
        None => divide(ranges, choice.t, streamed, requests),
        Some(Path::Direct) => divide(ranges, 0, streamed, requests),
        Some(Path::Mgr) => {
            let Some(at) = (0..ranges.len()).max_by_key(|at| ranges[*at].len) else { return Default::default() };
            let (longest, len) = (ranges[at], ranges[at].len.min(PROBE_MAX));
            let left = ByteRange { offset: longest.offset + len, len: longest.len - len };
            let mut others = ranges.to_vec();
            others.splice(at..=at, (!left.is_empty()).then_some(left));
            let (straight, mut through) = divide(&others, choice.t, streamed, requests);
            let place = through.partition_point(|range| range.offset < longest.offset);
            through.insert(place, ByteRange { len, ..longest });
            (straight, through)
        }
    }
}

/// Divides gathered ranges into ranges for the direct path and ranges for the mgr path, and returns both in this
/// order. `streamed` is the end offset of the last range that took the direct path. A short range that begins at this
/// offset is the end of a sequential stream. The range takes the direct path too, because the iod of the stream has
/// the object open.
///
/// On the mgr path each short range needs its own request. On the direct path one request takes many ranges of an
/// object (list I/O). So the mean length of the list I/O requests, instead of the length of the ranges, determines
/// the path; `requests` returns the number of these requests, at least one.
///
/// Ranges shorter than a block on average are expensive for iods, which must read and write a whole block for each.
/// The mgr may join such ranges with ranges of other clients. So ranges shorter than a block take the direct path
/// only if each request has `LIST_RANGES` or more ranges.
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
    // List I/O needs at least two ranges. If all ranges together have fewer than T bytes, they take the mgr path.
    if many > 1 && path(bytes, t) == Path::Direct {
        let requests = requests(&through).max(1);
        let blocks = bytes >= LIST_BLOCK * many && path(bytes / requests, t) == Path::Direct;
        if blocks || many / requests >= LIST_RANGES {
            return (ranges.to_vec(), Vec::new());
        }
    }
    (straight, through)
}

/// How the client determines the write threshold T: requests of fewer than T bytes take the mgr path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rule {
    /// The threshold T is fixed at this number of bytes.
    Fixed(u64),
    /// The threshold T follows the measured service times of the mgr path and the direct path ([`Auto`]).
    Auto,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(offset: u64, len: u64) -> ByteRange {
        ByteRange { offset, len }
    }

    #[test]
    fn ranges_shorter_than_the_threshold_take_the_mgr_path() {
        assert_eq!([path(0, 1), path(4095, 4096), path(1 << 40, ALWAYS_MGR)], [Path::Mgr; 3]);
        assert_eq!([path(0, 0), path(4096, 4096), path(1 << 20, 4096)], [Path::Direct; 3]);
    }

    #[test]
    fn every_range_takes_exactly_one_path() {
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
    fn the_other_path_is_probed_with_few_bytes() {
        const M: u64 = 1 << 20;
        let ranges = [range(0, 100), range(200, 8 * M), range(20 * M, 50), range(30 * M, 100)];
        let tries =
            |t, way| divide_by(&ranges, ThresholdChoice { t, probe: Some(way) }, None, |ranges| ranges.len() as u64);
        assert_eq!(tries(70, Path::Direct).0, ranges);
        let rest = range(200 + M, 7 * M);
        assert_eq!(tries(70, Path::Mgr), (vec![ranges[0], rest, ranges[3]], vec![range(200, M), ranges[2]]));
        assert_eq!(tries(200, Path::Mgr).1, [ranges[0], range(200, M), ranges[2], ranges[3]]);
        let one =
            |ranges: &[ByteRange]| divide_by(ranges, ThresholdChoice { t: 0, probe: Some(Path::Mgr) }, None, |_| 1);
        assert_eq!(one(&ranges[..1]), (vec![], vec![ranges[0]]));
        assert_eq!(one(&[]), (vec![], vec![]));
        assert_eq!(divide_by(&ranges, 70.into(), None, |_| 1), divide(&ranges, 70, None, |_| 1));
    }

    #[test]
    fn many_short_ranges_form_few_requests() {
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
        // One range has at least T bytes and takes the direct path. The two ranges of fewer than T bytes take the mgr
        // path.
        let mixed = [range(0, 10), range(20, 1000), range(2000, 10)];
        assert_eq!(divide(&mixed, 100, None, |short| short.len() as u64).1, [mixed[0], mixed[2]]);
        assert_eq!(divide(&mixed[..1], 11, None, |_| 1).1, mixed[..1]);
    }
}
