//! The write threshold: which requests go through the mgr, and which straight to the iods.
//!
//! A request shorter than T goes through the mgr, one of T or more straight to the iods; with T = 0 all go straight. (The
//! write threshold of Hildebrand, Ward and Honeyman, "Large files, small writes, and pNFS", 2006, section 5.3, which leaves
//! open what happens at T itself.)

use std::time::Duration;
use types::ByteRange;

/// The longest threshold: no request is as long.
pub const ALWAYS_MGR: u64 = u64::MAX;

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

/// Divides what has gathered into what goes straight, and what goes through the mgr. A short range right behind `streamed`, one
/// past the last byte that went straight, is the tail of a stream and follows it: the iod that has the rest has it open.
pub fn divide(ranges: &[ByteRange], t: u64, streamed: Option<u64>) -> (Vec<ByteRange>, Vec<ByteRange>) {
    let mut streamed = streamed;
    ranges.iter().partition(|range| {
        let straight = path(range.len, t) == Path::Direct || streamed == Some(range.offset);
        if straight {
            streamed = Some(range.end());
        }
        straight
    })
}

/// How T is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// It is this many bytes.
    Fixed(u64),
    /// It follows the crossing of the measured service times ([`Auto`]).
    Auto,
}

/// Size classes: up to 64 bytes, up to 128, and so on; the last has all from 1 MiB on.
const CLASSES: usize = 16;
/// The largest length of the first class, as a power of two.
const FIRST_LOG: u32 = 6;
/// T before anything was measured.
const T_FIRST: u64 = 64 << 10;
/// A new sample moves an average by one part in this many.
const WEIGHT: u64 = 8;
/// Another T has to be better by one part in this many of the time that the requests it moves take.
const MARGIN: u64 = 8;
/// One request in this many takes the other way where that was not measured lately.
const PROBE: u32 = 64;
/// Samples after which it is looked whether another T is better.
const SETTLE: u32 = 16;
/// Samples of the one way after which what is known of the other counts as old.
const OLD: u32 = 1024;

/// What is known of one way for one class.
#[derive(Clone, Copy, Default, Debug)]
struct Service {
    /// Moving average of the time, in nanoseconds; 0: nothing was measured.
    nanos: u64,
    /// Samples of the other way since the last one of this.
    age: u32,
}

/// T that follows measured service times: the crossing of the two curves of time by size, with hysteresis.
///
/// Each request tells how long it took on its way. Of all thresholds between two size classes the one is taken under which one
/// request of each class takes the least time in all. Now and then a request near T takes the other way, so that its curve is
/// known there.
#[derive(Clone, Debug)]
pub struct Auto {
    /// By class: through the mgr, straight.
    services: [[Service; 2]; CLASSES],
    t: u64,
    /// By class: requests that asked.
    asked: [u32; CLASSES],
    learnt: u32,
}

impl Default for Auto {
    fn default() -> Self {
        Auto { services: Default::default(), t: T_FIRST, asked: [0; CLASSES], learnt: 0 }
    }
}

/// The class of a length.
fn class(len: u64) -> usize {
    // The least power of two that is not below it.
    let log = u64::BITS - len.saturating_sub(1).leading_zeros();
    (log.saturating_sub(FIRST_LOG) as usize).min(CLASSES - 1)
}

/// The threshold below which the first `classes` classes lie.
fn boundary(classes: usize) -> u64 {
    match classes {
        0 => 0,
        CLASSES => ALWAYS_MGR,
        classes => (1 << (FIRST_LOG + classes as u32 - 1)) + 1,
    }
}

impl Auto {
    /// T now.
    pub fn threshold(&self) -> u64 {
        self.t
    }

    /// T for a request of `len` bytes: now and then one that sends it the other way, to learn.
    pub fn ask(&mut self, len: u64) -> u64 {
        let asked = &mut self.asked[class(len)];
        *asked = asked.wrapping_add(1);
        let asked = *asked;
        let now = path(len, self.t);
        let other = self.services[class(len)][1 - now as usize];
        let unknown = other.nanos == 0 || other.age > OLD;
        if !unknown || !asked.is_multiple_of(PROBE) {
            return self.t;
        }
        if now == Path::Mgr { 0 } else { ALWAYS_MGR }
    }

    /// A request of `len` bytes took so long on its way.
    pub fn learn(&mut self, way: Path, len: u64, took: Duration) {
        let class = class(len);
        let sample = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).clamp(1, u64::MAX / (2 * WEIGHT));
        let [mine, other] = match way {
            Path::Mgr => [0, 1],
            Path::Direct => [1, 0],
        };
        let service = &mut self.services[class][mine];
        service.nanos = match service.nanos {
            0 => sample,
            // What was known is old.
            nanos if service.age > OLD => nanos / 2 + sample / 2 + 1,
            nanos => ((nanos * (WEIGHT - 1) + sample) / WEIGHT).max(1),
        };
        service.age = 0;
        let other = &mut self.services[class][other];
        other.age = other.age.saturating_add(1);
        self.learnt = self.learnt.wrapping_add(1);
        if self.learnt.is_multiple_of(SETTLE) {
            self.settle();
        }
    }

    /// The time that one request of each class that is known both ways takes when the first `classes` go through the mgr.
    fn time(&self, classes: usize) -> u64 {
        let known = self.services.iter().enumerate().filter(|(_, [mgr, direct])| mgr.nanos > 0 && direct.nanos > 0);
        known.map(|(c, [mgr, direct])| if c < classes { mgr.nanos } else { direct.nanos } / CLASSES as u64).sum()
    }

    fn settle(&mut self) {
        let now = (0..=CLASSES).find(|classes| boundary(*classes) >= self.t).unwrap_or(CLASSES);
        // Of equals the nearest.
        let Some(best) = (0..=CLASSES).min_by_key(|classes| (self.time(*classes), classes.abs_diff(now))) else {
            return;
        };
        let moved = now.min(best)..now.max(best);
        let both = |[mgr, direct]: &[Service; 2]| mgr.nanos > 0 && direct.nanos > 0;
        let moved = self.services[moved].iter().filter(|class| both(class));
        let at_stake: u64 = moved.map(|[mgr, direct]| mgr.nanos.max(direct.nanos) / CLASSES as u64).sum();
        if self.time(now).saturating_sub(self.time(best)) > at_stake / MARGIN {
            self.t = boundary(best);
        }
    }
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
        let (straight, through) = divide(&ranges, 50, None);
        assert_eq!(straight, [range(20, 100), range(120, 5)]);
        assert_eq!(through, [range(0, 10), range(200, 5)]);
        assert_eq!(divide(&ranges, 50, Some(0)).0, [range(0, 10), range(20, 100), range(120, 5)]);
        assert_eq!(divide(&ranges, 0, None).0, ranges);
        assert_eq!(divide(&ranges, ALWAYS_MGR, None).1, ranges);
    }

    /// Times of two servers: a fixed part and one for each byte, in nanoseconds.
    fn run(auto: &mut Auto, mgr: (u64, u64), direct: (u64, u64), requests: u64) {
        for n in 0..requests {
            let len = 1 << (4 + n * 7 % 18);
            let t = auto.ask(len);
            let way = path(len, t);
            let (fixed, each) = if way == Path::Mgr { mgr } else { direct };
            auto.learn(way, len, Duration::from_nanos(fixed + each * len));
        }
    }

    #[test]
    fn it_finds_the_crossing_and_follows_it() {
        let mut auto = Auto::default();
        // They cross where 100 us + 10 ns a byte is 300 us + 2 ns a byte: at 25,000 bytes.
        run(&mut auto, (100_000, 10), (300_000, 2), 20_000);
        assert!(((16 << 10)..=(64 << 10) + 1).contains(&auto.threshold()), "{}", auto.threshold());
        // A busy mgr: the crossing is at 2500 bytes, and up to 8192 the difference is less than the margin.
        run(&mut auto, (280_000, 10), (300_000, 2), 200_000);
        assert!((1 << 10..=8193).contains(&auto.threshold()), "{}", auto.threshold());
        // An overloaded one.
        run(&mut auto, (5_000_000, 10), (300_000, 2), 200_000);
        assert_eq!(auto.threshold(), 0);
        // It recovers.
        run(&mut auto, (100_000, 10), (300_000, 2), 400_000);
        assert!(((16 << 10)..=(64 << 10) + 1).contains(&auto.threshold()), "{}", auto.threshold());
    }

    #[test]
    fn it_does_not_follow_noise() {
        let mut auto = Auto::default();
        run(&mut auto, (100_000, 10), (300_000, 2), 20_000);
        let before = auto.threshold();
        for n in 0..20_000u64 {
            let len = 1 << (4 + n * 7 % 18);
            let way = path(len, auto.ask(len));
            let (fixed, each) = if way == Path::Mgr { (100_000, 10) } else { (300_000, 2) };
            // A twentieth more or less.
            let noise = 95 + n * 2_654_435_761 % 11;
            auto.learn(way, len, Duration::from_nanos((fixed + each * len) * noise / 100));
            assert_eq!(auto.threshold(), before);
        }
    }

    #[test]
    fn classes_and_boundaries_agree() {
        for len in [0, 1, 64, 65, 128, 129, 4096, 4097, 1 << 20, (1 << 20) + 1, u64::MAX >> 1] {
            let c = class(len);
            assert_eq!(path(len, boundary(c)), Path::Direct, "{len}");
            assert_eq!(path(len, boundary(c + 1)), Path::Mgr, "{len}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_times_leave_some_threshold(samples in proptest::collection::vec(
            (proptest::bool::ANY, 0u64.., 0u64..), 0..500)) {
            let mut auto = Auto::default();
            for (mgr, len, nanos) in samples {
                auto.ask(len);
                auto.learn(if mgr { Path::Mgr } else { Path::Direct }, len, Duration::from_nanos(nanos));
            }
        }
    }
}
