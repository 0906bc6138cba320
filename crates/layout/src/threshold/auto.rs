//! T that follows what is faster: service times by size on both ways, and how long requests wait at the mgr.

use super::{ALWAYS_MGR, Path, Verdict, path};
use std::time::Duration;

/// Size classes: up to 64 bytes, up to 128, and so on; the last has all above 512 KiB, of which no more than 1 MiB goes in one request.
const CLASSES: usize = 15;
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
/// And one in this many where it was not measured often enough to be known,
const PROBE_FIRST: u32 = 8;
/// or this, if it is long, and dear where that way is the worse one.
const PROBE_LONG: u32 = 32;
/// Samples after which a way is known for short requests: one alone says little.
const KNOWN: u32 = 2;
/// What goes straight with a short request costs more than its sender can see: the iods write it by itself, and the mgr would have joined it with what others
/// write. It is taken for this part of its time longer. Else all are drawn there, each by a little, and all lose: with ten clients that write
/// 10 KiB at a time and all go straight, each takes a seventh longer than if none did, while each is a fifth quicker there than those that do not.
const SPARED: u64 = 3;
/// What is short for this.
const SHORT_MAX: u64 = 64 << 10;
/// Samples after which it is looked whether another T is better.
const SETTLE: u32 = 4;
/// Samples of the one way after which what is known of the other counts as old.
const OLD: u32 = 1024;
/// The mgr is loaded while its queue delay is more than one part in this many of what requests take straight,
const LOADED: u64 = 4;
/// until it is less than one part in this many.
const CALM: u64 = 8;
/// How much more slowly what is known of calm times goes up.
const RELUCTANCE: u64 = 64;
/// The mgr is overloaded until its queue delay is one part in this many of what began it.
const RECOVERED: u64 = 2;

/// What is known of one way for one class.
#[derive(Clone, Copy, Default, Debug)]
struct Service {
    /// Moving average of the time, in nanoseconds; 0: nothing was measured. Without the wait at the mgr.
    nanos: u64,
    /// The same as it was before the mgr was loaded: then requests wait more often than once, for locks and threads, and take
    /// longer than the wait that is told explains.
    calm: u64,
    /// How often it was measured, as far as that counts.
    samples: u32,
    /// Samples of the other way since the last one of this.
    age: u32,
}

/// T that follows measured service times: the crossing of the two curves of time by size, with hysteresis.
///
/// Each request tells how long it took on its way, and the mgr how long requests wait there before they are worked on. That
/// wait is the same for all sizes, so that it is taken off what was measured and put back on as it is now: when the mgr
/// becomes busy the whole curve of that way moves up at once, and T goes down. Of all thresholds between two size classes the
/// one is taken under which one request of each class takes the least time in all. While requests wait longer at the mgr than
/// they take straight, it is overloaded and T is 0. Now and then a request near T takes the other way, so that its curve is
/// known there.
#[derive(Clone, Debug)]
pub struct Auto {
    /// By class: through the mgr, straight.
    services: [[Service; 2]; CLASSES],
    t: u64,
    /// By class: requests that asked.
    asked: [u32; CLASSES],
    learnt: u32,
    /// How long requests wait at the mgr as it says, in nanoseconds.
    told: u64,
    /// How long one waits by what is seen from here.
    seen: u64,
    /// Whether that is a large part of what they would take straight.
    loaded: bool,
    /// Whether that is longer than they would take straight.
    overloaded: bool,
}

impl Default for Auto {
    fn default() -> Self {
        Auto {
            services: Default::default(),
            t: T_FIRST,
            asked: [0; CLASSES],
            learnt: 0,
            told: 0,
            seen: 0,
            loaded: false,
            overloaded: false,
        }
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

/// Whether all requests of a class are short.
fn is_short(class: usize) -> bool {
    boundary(class + 1) <= SHORT_MAX + 1
}

impl Service {
    /// Whether it was measured often enough, for this class.
    fn is_known(&self, class: usize) -> bool {
        self.samples >= if is_short(class) { KNOWN } else { 1 }
    }
}

/// What a request takes while the mgr is not loaded, after one that took this long. Upwards it goes slowly: the mgr tells of a load
/// only after the first requests have felt it.
fn calmer(calm: u64, sample: u64) -> u64 {
    match calm {
        0 => sample,
        calm if sample < calm => calm - (calm - sample) / WEIGHT,
        calm => calm + (sample - calm).min(3 * calm) / RELUCTANCE,
    }
}

/// A time in nanoseconds, small enough to be added to others.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / (4 * WEIGHT))
}

impl Auto {
    /// T now.
    pub fn threshold(&self) -> u64 {
        if self.overloaded { 0 } else { self.t }
    }

    /// T for a request of `len` bytes; now and then the other way is tried with it, to learn. `waiting` is for how long the
    /// oldest request to the mgr has waited for its answer; zero without one.
    pub fn ask(&mut self, len: u64, waiting: Duration) -> Verdict {
        // What takes longer than any request took there waits for at least the difference.
        let longest = self.services.iter().map(|[mgr, _]| mgr.nanos).max().unwrap_or(0);
        let seen = nanos(waiting).saturating_sub(longest);
        if seen != self.seen {
            self.seen = seen;
            self.weigh();
        }
        let t = self.threshold();
        let asked = &mut self.asked[class(len)];
        *asked = asked.wrapping_add(1);
        let asked = *asked;
        let now = path(len, t);
        let other = self.services[class(len)][1 - now as usize];
        let unknown = !other.is_known(class(len));
        let every = match unknown {
            true if is_short(class(len)) => PROBE_FIRST,
            true => PROBE_LONG,
            false => PROBE,
        };
        // One that does not answer is not asked for the sake of knowledge.
        let silent = now == Path::Direct && seen > 0 && self.overloaded;
        if !(unknown || other.age > OLD) || silent || !asked.is_multiple_of(every) {
            return t.into();
        }
        Verdict { t, tries: Some(if now == Path::Mgr { Path::Direct } else { Path::Mgr }) }
    }

    /// A request of `len` bytes took so long on its way, on which so many were sent together. What counts is how long all of them took, so
    /// each is taken for its part of that: servers work side by side, and one of them on several requests one after the other.
    pub fn learn(&mut self, way: Path, len: u64, took: Duration, together: usize) {
        let class = class(len);
        let [mine, other] = match way {
            Path::Mgr => [0, 1],
            Path::Direct => [1, 0],
        };
        let waited = if way == Path::Mgr { self.told } else { 0 };
        let sample = (nanos(took).saturating_sub(waited) / (together as u64).max(1)).max(1);
        let service = &mut self.services[class][mine];
        service.nanos = match service.nanos {
            0 => sample,
            // What was known is old.
            nanos if service.age > OLD => nanos / 2 + sample / 2 + 1,
            nanos => {
                let weight = WEIGHT.min(u64::from(service.samples) + 1);
                ((nanos * (weight - 1) + sample) / weight).max(1)
            }
        };
        service.samples = service.samples.saturating_add(1);
        if !self.loaded {
            service.calm = calmer(service.calm, sample);
        }
        service.age = 0;
        let other = &mut self.services[class][other];
        other.age = other.age.saturating_add(1);
        self.learnt = self.learnt.wrapping_add(1);
        if self.learnt.is_multiple_of(SETTLE) {
            self.settle();
        }
    }

    /// The mgr says how long requests wait there before they are worked on.
    pub fn queued(&mut self, delay: Duration) {
        // It is an average already.
        self.told = nanos(delay);
        self.weigh();
        self.settle();
    }

    fn queue(&self) -> u64 {
        self.told.max(self.seen)
    }

    /// Sees whether the mgr is overloaded.
    fn weigh(&mut self) {
        let queue = self.queue();
        // What the shortest requests take straight; those below it take no longer.
        let Some(straight) = self.services.iter().map(|[_, direct]| direct.nanos).find(|nanos| *nanos > 0) else {
            return;
        };
        let was = self.loaded;
        self.loaded = queue > straight / if was { CALM } else { LOADED };
        if was && !self.loaded {
            // What was measured meanwhile is no more so.
            for [mgr, _] in &mut self.services {
                *mgr = if mgr.calm == 0 { Service::default() } else { Service { nanos: mgr.calm, ..*mgr } };
            }
        }
        self.overloaded = match self.overloaded {
            false => queue > straight,
            true => queue > straight / RECOVERED,
        };
    }

    /// How long a request of a class takes through the mgr and straight, as that counts, if it is known which is shorter. Where one of them is not
    /// known, a shorter time than that of the other tells enough: no request takes longer than a larger one.
    fn times(&self, class: usize) -> Option<[u64; 2]> {
        let known = |class: usize, way: usize| {
            let service = &self.services[class][way];
            service.is_known(class).then_some(service.nanos)
        };
        let bound = |way: usize| (class..CLASSES).find_map(|class| known(class, way));
        let through = |nanos: u64| nanos + self.queue();
        let straight = |nanos: u64| nanos + if is_short(class) { nanos / SPARED } else { 0 };
        match [known(class, 0), known(class, 1)] {
            [None, None] => None,
            [None, Some(direct)] => {
                bound(0).map(|mgr| [through(mgr), straight(direct)]).filter(|[mgr, direct]| mgr < direct)
            }
            [Some(mgr), None] => {
                bound(1).map(|direct| [through(mgr), straight(direct)]).filter(|[mgr, direct]| direct < mgr)
            }
            [Some(mgr), Some(direct)] => Some([through(mgr), straight(direct)]),
        }
    }

    fn settle(&mut self) {
        let times: [Option<[u64; 2]>; CLASSES] = std::array::from_fn(|class| self.times(class));
        // What one request of each class of which that is known takes when the first `classes` go through the mgr.
        let time = |classes: usize| -> u64 {
            let of = |(class, times): (usize, [u64; 2])| times[usize::from(class >= classes)] / CLASSES as u64;
            times.iter().enumerate().filter_map(|(class, times)| Some(of((class, (*times)?)))).sum()
        };
        let now = (0..=CLASSES).find(|classes| boundary(*classes) >= self.t).unwrap_or(CLASSES);
        // Of equals the nearest.
        let Some(best) = (0..=CLASSES).min_by_key(|classes| (time(*classes), classes.abs_diff(now))) else {
            return;
        };
        let moved = times[now.min(best)..now.max(best)].iter().flatten();
        let at_stake: u64 = moved.map(|[mgr, direct]| mgr.max(direct) / CLASSES as u64).sum();
        if time(now).saturating_sub(time(best)) > at_stake / MARGIN {
            self.t = boundary(best);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mgr and iods whose times are made up: a fixed part and one for each byte, and a wait at the mgr, in nanoseconds.
    #[derive(Clone, Copy)]
    struct Servers {
        mgr: (u64, u64),
        direct: (u64, u64),
        queue: u64,
        /// Whether the mgr tells of the wait.
        tells: bool,
    }

    /// They cross where 100 us + 10 ns a byte is 300 us + 2 ns a byte: at 25,000 bytes.
    const QUIET: Servers = Servers { mgr: (100_000, 10), direct: (300_000, 2), queue: 0, tells: true };
    /// T where they cross, give or take a class.
    const CROSSING: std::ops::RangeInclusive<u64> = 16 << 10..=(64 << 10) + 1;

    /// The way of a request.
    fn way(auto: &mut Auto, len: u64) -> Path {
        let verdict = auto.ask(len, Duration::ZERO);
        verdict.tries.unwrap_or(path(len, verdict.t))
    }

    fn request(auto: &mut Auto, servers: Servers, len: u64) {
        let way = way(auto, len);
        let ((fixed, each), wait) = if way == Path::Mgr { (servers.mgr, servers.queue) } else { (servers.direct, 0) };
        auto.learn(way, len, Duration::from_nanos(fixed + each * len + wait), 1);
        if servers.tells && way == Path::Mgr {
            auto.queued(Duration::from_nanos(servers.queue));
        }
    }

    /// Requests of sizes from 16 bytes to 2 MiB.
    fn run(auto: &mut Auto, servers: Servers, requests: u64) {
        (0..requests).for_each(|n| request(auto, servers, 1 << (4 + n * 7 % 18)));
    }

    #[test]
    fn it_finds_the_crossing_and_follows_it() {
        let mut auto = Auto::default();
        run(&mut auto, QUIET, 20_000);
        assert!(CROSSING.contains(&auto.threshold()), "{}", auto.threshold());
        // A slow mgr: by their own time all would be quicker straight. With what they cost others it is those of more than some bytes, and up to 8192
        // the difference is less than the margin.
        run(&mut auto, Servers { mgr: (400_000, 10), ..QUIET }, 200_000);
        assert!((1 << 10..=8193).contains(&auto.threshold()), "{}", auto.threshold());
        // A very slow one.
        run(&mut auto, Servers { mgr: (5_000_000, 10), ..QUIET }, 200_000);
        assert_eq!(auto.threshold(), 0);
        // It recovers.
        run(&mut auto, QUIET, 400_000);
        assert!(CROSSING.contains(&auto.threshold()), "{}", auto.threshold());
    }

    #[test]
    fn it_does_not_follow_noise() {
        let mut auto = Auto::default();
        run(&mut auto, QUIET, 20_000);
        let before = auto.threshold();
        for n in 0..20_000u64 {
            let len = 1 << (4 + n * 7 % 18);
            let way = way(&mut auto, len);
            let (fixed, each) = if way == Path::Mgr { QUIET.mgr } else { QUIET.direct };
            // A twentieth more or less.
            let noise = 95 + n * 2_654_435_761 % 11;
            auto.learn(way, len, Duration::from_nanos((fixed + each * len) * noise / 100), 1);
            // A wait that is small beside what requests take.
            auto.queued(Duration::from_nanos(n * 7919 % 5000));
            assert_eq!(auto.threshold(), before);
        }
    }

    #[test]
    fn it_falls_with_the_load_of_the_mgr_and_rises_again() {
        let mut auto = Auto::default();
        run(&mut auto, QUIET, 20_000);
        let quiet = auto.threshold();
        // Ever longer waits, as the mgr tells of them with its next answers: T never rises, and is 0 at the end.
        let mut before = quiet;
        for step in 1..=20 {
            let queue = step * 20_000;
            run(&mut auto, Servers { queue, ..QUIET }, 64);
            assert!(auto.threshold() <= before, "{queue}: {} after {before}", auto.threshold());
            before = auto.threshold();
            if queue == 160_000 {
                // The crossing is at 5000 bytes.
                assert!((1..quiet).contains(&before), "{before} at {queue}");
            }
        }
        assert_eq!(before, 0, "requests wait longer there than they take straight");
        // And back, at the same steps or later.
        for step in (0..20).rev() {
            run(&mut auto, Servers { queue: step * 20_000, ..QUIET }, 2000);
            auto.queued(Duration::from_nanos(step * 20_000));
            assert!(auto.threshold() >= before, "{step}: {} after {before}", auto.threshold());
            before = auto.threshold();
        }
        assert!(CROSSING.contains(&before), "{before}");
    }

    #[test]
    fn what_a_loaded_mgr_took_is_forgotten_when_it_is_not() {
        let mut auto = Auto::default();
        run(&mut auto, QUIET, 20_000);
        let quiet = auto.threshold();
        // Requests wait there four times as long as they do to begin with.
        let busy = Servers { mgr: (100_000 + 3 * 200_000, 10), queue: 200_000, ..QUIET };
        // The first ones before it says so.
        run(&mut auto, Servers { tells: false, ..busy }, 20);
        run(&mut auto, busy, 500);
        assert!(auto.threshold() < quiet, "{}", auto.threshold());
        auto.queued(Duration::ZERO);
        assert_eq!(auto.threshold(), quiet);
        // What was never measured otherwise is not known.
        let mut auto = Auto::default();
        auto.learn(Path::Direct, 100, Duration::from_micros(300), 1);
        auto.queued(Duration::from_micros(200));
        auto.learn(Path::Mgr, 100, Duration::from_millis(9), 1);
        auto.queued(Duration::ZERO);
        assert_eq!(auto.services[class(100)][0].nanos, 0);
    }

    /// A mount that begins beside others, whose load ends.
    #[test]
    fn a_mgr_that_was_met_loaded_is_not_taken_for_infinitely_quick() {
        let mut auto = Auto::default();
        let busy = Servers { queue: 200_000, ..QUIET };
        auto.learn(Path::Direct, 64, Duration::from_nanos(QUIET.direct.0), 1);
        auto.queued(Duration::from_nanos(busy.queue));
        run(&mut auto, busy, 2000);
        let before = auto.threshold();
        auto.queued(Duration::ZERO);
        assert!(auto.threshold() <= before, "{} after {before}", auto.threshold());
        // What is asked from then on tells how it is.
        for n in 0..4000 {
            request(&mut auto, QUIET, [16 << 10, 100_000][n % 2]);
        }
        assert!((16 << 10..100_000).contains(&auto.threshold()), "{}", auto.threshold());
    }

    #[test]
    fn one_answer_is_enough_to_know_of_an_overload_and_of_its_end() {
        let mut auto = Auto::default();
        run(&mut auto, QUIET, 20_000);
        let quiet = auto.threshold();
        auto.queued(Duration::from_millis(5));
        assert_eq!(auto.threshold(), 0);
        // Around the border it stays as it is.
        for wait in [290, 310, 200, 310, 160] {
            auto.queued(Duration::from_micros(wait));
            assert_eq!(auto.threshold(), 0, "{wait} us");
        }
        auto.queued(Duration::from_micros(1));
        assert_eq!(auto.threshold(), quiet, "what was known without the wait is known again");
    }

    #[test]
    fn a_mgr_that_does_not_answer_is_overloaded() {
        let mut auto = Auto::default();
        run(&mut auto, QUIET, 20_000);
        let quiet = auto.threshold();
        assert_eq!(auto.ask(16, Duration::from_millis(1)), quiet.into(), "a long request may take as long");
        assert_eq!(auto.ask(16, Duration::from_secs(2)), 0.into());
        assert!((0..1000).all(|_| auto.ask(16, Duration::from_secs(2)) == 0.into()), "nobody is sent there to try");
        // It answers again.
        assert_eq!(auto.ask(16, Duration::ZERO), quiet.into());
    }

    #[test]
    fn a_mgr_that_tells_nothing_is_known_by_its_times() {
        let mut auto = Auto::default();
        run(&mut auto, QUIET, 20_000);
        run(&mut auto, Servers { queue: 5_000_000, tells: false, ..QUIET }, 200_000);
        assert_eq!(auto.threshold(), 0);
    }

    #[test]
    fn classes_and_boundaries_agree() {
        for len in [0, 1, 64, 65, 128, 129, 4096, 4097, 1 << 20, (1 << 20) + 1, u64::MAX >> 1] {
            let c = class(len);
            assert_eq!(path(len, boundary(c)), Path::Direct, "{len}");
            assert_eq!(path(len, boundary(c + 1)), Path::Mgr, "{len}");
        }
    }

    #[test]
    fn a_mgr_that_is_slower_with_short_requests_than_iods_with_long_ones_is_left_at_once() {
        let mut auto = Auto::default();
        for _ in 0..SETTLE {
            auto.learn(Path::Direct, 256 << 10, Duration::from_millis(20), 1);
        }
        assert_eq!(auto.threshold(), T_FIRST, "long ones alone say nothing of the mgr");
        for n in 0..6 * u64::from(KNOWN) {
            auto.learn(Path::Mgr, 100 << (n % 6), Duration::from_millis(200), 1);
        }
        assert!(auto.threshold() <= 65, "{}", auto.threshold());
        // One that is quick with long requests is quick with short ones.
        let mut auto = Auto { t: 0, ..Auto::default() };
        for n in 0..6 * u64::from(KNOWN) {
            auto.learn(Path::Direct, 100 << (n % 6), Duration::from_millis(20), 1);
            auto.learn(Path::Mgr, 16 << 10, Duration::from_millis(2), 1);
        }
        assert_eq!(path(100 << 5, auto.threshold()), Path::Mgr, "{}", auto.threshold());
    }

    #[test]
    fn a_way_that_was_never_taken_is_tried_soon() {
        let mut auto = Auto::default();
        let ways: Vec<Path> = (0..PROBE_FIRST).map(|_| way(&mut auto, 1000)).collect();
        assert_eq!(ways.iter().filter(|way| **way == Path::Direct).count(), 1);
        (0..KNOWN).for_each(|_| auto.learn(Path::Direct, 1000, Duration::from_millis(20), 1));
        assert!((0..100).all(|_| way(&mut auto, 1000) == Path::Mgr), "now it is known");
    }

    /// Ten clients that take 10 KiB each to servers that are the slower the more of them come: alone, each is quicker straight; together all lose.
    #[test]
    fn what_is_quicker_for_one_and_slower_for_all_is_left_alone() {
        let mut clients = vec![Auto::default(); 10];
        let mut straight = 0;
        for _ in 0..200 {
            let ways: Vec<Path> = clients.iter_mut().map(|auto| way(auto, 10_000)).collect();
            let many = ways.iter().filter(|way| **way == Path::Direct).count() as u64;
            straight += many;
            for (auto, way) in clients.iter_mut().zip(ways) {
                // All through the mgr: 7.1 ms each, one of them straight 5.6; all straight: 8.2 ms each.
                let micros = match way {
                    Path::Mgr => 7100 + 150 * many,
                    Path::Direct => 5600 + 290 * (many - 1),
                };
                auto.learn(way, 10_000, Duration::from_micros(micros), 1);
            }
        }
        assert!(straight <= 10 * u64::from(KNOWN), "{straight} of 2000");
        // A mgr that is slower by more than that is left by all.
        for _ in 0..200 {
            for auto in &mut clients {
                let way = way(auto, 10_000);
                auto.learn(way, 10_000, Duration::from_micros(if way == Path::Mgr { 14_000 } else { 8_200 }), 1);
            }
        }
        assert!(clients.iter().all(|auto| auto.threshold() <= 10_000));
    }

    /// Eight iods that take a request each, and a mgr that takes them one after the other.
    #[test]
    fn servers_that_work_side_by_side_count_together() {
        let mut auto = Auto::default();
        for _ in 0..10 {
            (0..8).for_each(|_| auto.learn(Path::Direct, 1 << 20, Duration::from_millis(90), 8));
            // A try.
            auto.learn(Path::Mgr, 1 << 20, Duration::from_millis(42), 1);
            assert_eq!(path(1 << 20, auto.threshold()), Path::Direct);
        }
        // Many at once, which wait for each other.
        for n in 1..=160 {
            auto.learn(Path::Mgr, 1 << 20, Duration::from_millis(6 * (n % 8 + 1)), 8);
        }
        assert_eq!(path(1 << 20, auto.threshold()), Path::Mgr);
    }

    proptest::proptest! {
        #[test]
        fn any_times_leave_some_threshold(samples in proptest::collection::vec(
            (0u8..3, 0u64.., 0u64..), 0..500)) {
            let mut auto = Auto::default();
            for (what, len, nanos) in samples {
                let time = Duration::from_nanos(nanos);
                auto.ask(len, time);
                match what {
                    0 => auto.learn(Path::Mgr, len, time, 1),
                    1 => auto.learn(Path::Direct, len, time, 1),
                    _ => auto.queued(time),
                }
            }
        }
    }
}
