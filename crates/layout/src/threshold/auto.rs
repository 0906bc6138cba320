//! The adaptive write threshold, which follows the faster path: service times by size on both paths, and the queue
//! delay of the mgr.

use super::{ALWAYS_MGR, Path, Verdict, path};
use std::time::Duration;

/// Number of size classes: up to 64 bytes, up to 128, and so on. The last class has all sizes above 512 KiB; one
/// request carries at most 1 MiB of them.
const CLASSES: usize = 15;
/// The largest length in the first class, as a power of two.
const FIRST_LOG: u32 = 6;
/// T before the first measurement.
const T_FIRST: u64 = 64 << 10;
/// A new sample moves an average by one part in this many.
const WEIGHT: u64 = 8;
/// T changes only if that saves more than one part in this many of the time of the requests that change their path.
const MARGIN: u64 = 8;
/// One request in this many probes the other path if its measurements are old.
const PROBE: u32 = 64;
/// One short request in this many probes the other path while that path has too few samples.
const PROBE_FIRST: u32 = 8;
/// One long request in this many does so, because a long request is expensive on the slower path.
const PROBE_LONG: u32 = 32;
/// Number of samples after which a path counts as known for short requests: a single sample says little.
const KNOWN: u32 = 2;
/// A short request on the direct path costs more than its sender can measure. The iods write it alone, while the mgr
/// would have joined it with writes of other clients. So its time is increased by one part in this many. Without this,
/// every client chooses the direct path for a small gain, and all clients lose. Measured with ten clients that write 10
/// KiB at a time: if all use the direct path, each takes a seventh longer than if none does. Yet each is a fifth faster
/// there than clients on the mgr path.
const SPARED: u64 = 3;
/// Maximum length of a short request in this sense.
const SHORT_MAX: u64 = 64 << 10;
/// Number of samples after which T is reconsidered.
const SETTLE: u32 = 4;
/// Number of samples of one path after which the measurements of the other path count as old.
const OLD: u32 = 1024;
/// The mgr counts as loaded once its queue delay exceeds one part in this many of the time on the direct path.
const LOADED: u64 = 4;
/// A loaded mgr counts as calm again once its queue delay is at most one part in this many of that time.
const CALM: u64 = 8;
/// A larger sample raises the average for calm times by one part in this many of the difference.
const RELUCTANCE: u64 = 64;
/// An overload ends once the queue delay is at most one part in this many of the time on the direct path.
const RECOVERED: u64 = 2;

/// Measurements of one path for one class.
#[derive(Clone, Copy, Default, Debug)]
struct Service {
    /// Moving average of the service time in nanoseconds, without the wait at the mgr; 0: not measured.
    nanos: u64,
    /// The same average as of before the mgr was loaded. On a loaded mgr, requests also wait for locks and threads, and
    /// take longer than the reported queue delay explains.
    calm: u64,
    /// Number of samples.
    samples: u32,
    /// Number of samples of the other path since the last sample of this path.
    age: u32,
}

/// An adaptive T that follows measured service times: the crossing of the two curves of time by size, with hysteresis.
///
/// Each request reports its time on its path, and the mgr reports its queue delay: how long requests wait before it
/// processes them. The delay is the same for all sizes. So it is subtracted from measured times, and the present delay
/// is added again. When the mgr becomes busy, the whole curve of the mgr path moves up at once, and T decreases. Among
/// all thresholds between two size classes, the one is chosen that minimizes the total time of one request of each
/// class. While the queue delay exceeds the time on the direct path, the mgr is overloaded and T is 0. Now and then a
/// request probes the other path, so that its curve is known there.
#[derive(Clone, Debug)]
pub struct Auto {
    /// Measurements by class: mgr path, direct path.
    services: [[Service; 2]; CLASSES],
    t: u64,
    /// Number of calls of [`Self::ask`] by class.
    asked: [u32; CLASSES],
    learnt: u32,
    /// The queue delay that the mgr reports, in nanoseconds.
    told: u64,
    /// The queue delay that the client observes, in nanoseconds.
    seen: u64,
    /// Whether the queue delay is a large part of the time on the direct path.
    loaded: bool,
    /// Whether the queue delay exceeds the time on the direct path.
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

/// Returns the class of a length.
fn class(len: u64) -> usize {
    // The least power of two that is not below the length.
    let log = u64::BITS - len.saturating_sub(1).leading_zeros();
    (log.saturating_sub(FIRST_LOG) as usize).min(CLASSES - 1)
}

/// Returns the threshold that is just above the first `classes` classes.
fn boundary(classes: usize) -> u64 {
    match classes {
        0 => 0,
        CLASSES => ALWAYS_MGR,
        classes => (1 << (FIRST_LOG + classes as u32 - 1)) + 1,
    }
}

/// Returns whether all requests of a class are short.
fn is_short(class: usize) -> bool {
    boundary(class + 1) <= SHORT_MAX + 1
}

impl Service {
    /// Returns whether this class has enough samples.
    fn is_known(&self, class: usize) -> bool {
        self.samples >= if is_short(class) { KNOWN } else { 1 }
    }
}

/// Updates the average for calm times with a sample. It rises slowly, because the mgr reports a load only after the
/// first requests have met it.
fn calmer(calm: u64, sample: u64) -> u64 {
    match calm {
        0 => sample,
        calm if sample < calm => calm - (calm - sample) / WEIGHT,
        calm => calm + (sample - calm).min(3 * calm) / RELUCTANCE,
    }
}

/// Returns a time in nanoseconds, bounded so that sums do not overflow.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / (4 * WEIGHT))
}

impl Auto {
    /// Returns the present T.
    pub fn threshold(&self) -> u64 {
        if self.overloaded { 0 } else { self.t }
    }

    /// Returns T for a request of `len` bytes; occasionally also the other path as a probe. `waiting` is how long the
    /// oldest request to the mgr has waited for its answer; zero if no request waits.
    pub fn ask(&mut self, len: u64, waiting: Duration) -> Verdict {
        // The part of `waiting` beyond the longest service time of the mgr is a lower bound of the queue delay.
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
        // An unresponsive mgr is not probed.
        let silent = now == Path::Direct && seen > 0 && self.overloaded;
        if !(unknown || other.age > OLD) || silent || !asked.is_multiple_of(every) {
            return t.into();
        }
        Verdict { t, tries: Some(if now == Path::Mgr { Path::Direct } else { Path::Mgr }) }
    }

    /// Takes the time `took` of a request of `len` bytes on its path, on which `together` requests were sent at the
    /// same time. Each request counts with its share of the time. Reason: servers work in parallel, and a server
    /// handles several requests one after the other.
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
            // The old average is outdated.
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

    /// Takes the queue delay that the mgr reports.
    pub fn queued(&mut self, delay: Duration) {
        // The reported delay is already an average.
        self.told = nanos(delay);
        self.weigh();
        self.settle();
    }

    fn queue(&self) -> u64 {
        self.told.max(self.seen)
    }

    /// Determines whether the mgr is loaded or overloaded.
    fn weigh(&mut self) {
        let queue = self.queue();
        // The time of the shortest measured class on the direct path; still shorter requests take no longer.
        let Some(straight) = self.services.iter().map(|[_, direct]| direct.nanos).find(|nanos| *nanos > 0) else {
            return;
        };
        let was = self.loaded;
        self.loaded = queue > straight / if was { CALM } else { LOADED };
        if was && !self.loaded {
            // The times that were measured under load no longer hold: return to the averages from before the load.
            for [mgr, _] in &mut self.services {
                *mgr = if mgr.calm == 0 { Service::default() } else { Service { nanos: mgr.calm, ..*mgr } };
            }
        }
        self.overloaded = match self.overloaded {
            false => queue > straight,
            true => queue > straight / RECOVERED,
        };
    }

    /// Returns the weighted times of a request of a class on the mgr path and on the direct path, if it is known which
    /// is less. If one is not known, the known time of a larger class bounds it, because no request takes longer than a
    /// larger one. The bound suffices if it is below the time of the other path.
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
        // Total time of one request of each class with known times, when the first `classes` classes take the mgr path.
        let time = |classes: usize| -> u64 {
            let of = |(class, times): (usize, [u64; 2])| times[usize::from(class >= classes)] / CLASSES as u64;
            times.iter().enumerate().filter_map(|(class, times)| Some(of((class, (*times)?)))).sum()
        };
        let now = (0..=CLASSES).find(|classes| boundary(*classes) >= self.t).unwrap_or(CLASSES);
        // Of several thresholds with the same total time, take the nearest to the current threshold.
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

    /// Simulated mgr and iods: a fixed time and a time for each byte, and a queue delay at the mgr, in nanoseconds.
    #[derive(Clone, Copy)]
    struct Servers {
        mgr: (u64, u64),
        direct: (u64, u64),
        queue: u64,
        /// Whether the mgr reports its queue delay.
        tells: bool,
    }

    /// The curves cross where 100 us + 10 ns a byte is 300 us + 2 ns a byte: at 25,000 bytes.
    const QUIET: Servers = Servers { mgr: (100_000, 10), direct: (300_000, 2), queue: 0, tells: true };
    /// T at the crossing, plus or minus a class.
    const CROSSING: std::ops::RangeInclusive<u64> = 16 << 10..=(64 << 10) + 1;

    /// Returns the path of a request.
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

    /// Runs requests of sizes from 16 bytes to 2 MiB.
    fn run(auto: &mut Auto, servers: Servers, requests: u64) {
        (0..requests).for_each(|n| request(auto, servers, 1 << (4 + n * 7 % 18)));
    }

    #[test]
    fn auto_finds_and_follows_the_size_where_the_paths_cross() {
        let mut auto = Auto::default();
        run(&mut auto, QUIET, 20_000);
        assert!(CROSSING.contains(&auto.threshold()), "{}", auto.threshold());
        // A slow mgr: by their own times, all requests would be faster on the direct path. With the surcharge for short
        // requests, only those of more than some bytes are. Up to 8192 bytes the difference is below the margin.
        run(&mut auto, Servers { mgr: (400_000, 10), ..QUIET }, 200_000);
        assert!((1 << 10..=8193).contains(&auto.threshold()), "{}", auto.threshold());
        // A very slow mgr.
        run(&mut auto, Servers { mgr: (5_000_000, 10), ..QUIET }, 200_000);
        assert_eq!(auto.threshold(), 0);
        // The mgr recovers.
        run(&mut auto, QUIET, 400_000);
        assert!(CROSSING.contains(&auto.threshold()), "{}", auto.threshold());
    }

    #[test]
    fn auto_ignores_noise() {
        let mut auto = Auto::default();
        run(&mut auto, QUIET, 20_000);
        let before = auto.threshold();
        for n in 0..20_000u64 {
            let len = 1 << (4 + n * 7 % 18);
            let way = way(&mut auto, len);
            let (fixed, each) = if way == Path::Mgr { QUIET.mgr } else { QUIET.direct };
            // Noise of plus or minus a twentieth.
            let noise = 95 + n * 2_654_435_761 % 11;
            auto.learn(way, len, Duration::from_nanos((fixed + each * len) * noise / 100), 1);
            // A queue delay that is small compared with the times of requests.
            auto.queued(Duration::from_nanos(n * 7919 % 5000));
            assert_eq!(auto.threshold(), before);
        }
    }

    #[test]
    fn auto_falls_with_mgr_load_and_rises_again() {
        let mut auto = Auto::default();
        run(&mut auto, QUIET, 20_000);
        let quiet = auto.threshold();
        // Increasing queue delays, which the mgr reports in its next answers: T never rises, and is 0 at the end.
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
        // Decreasing queue delays: T never falls, and is in the range of the crossing at the end.
        for step in (0..20).rev() {
            run(&mut auto, Servers { queue: step * 20_000, ..QUIET }, 2000);
            auto.queued(Duration::from_nanos(step * 20_000));
            assert!(auto.threshold() >= before, "{step}: {} after {before}", auto.threshold());
            before = auto.threshold();
        }
        assert!(CROSSING.contains(&before), "{before}");
    }

    #[test]
    fn times_of_a_loaded_mgr_are_discarded_when_the_load_ends() {
        let mut auto = Auto::default();
        run(&mut auto, QUIET, 20_000);
        let quiet = auto.threshold();
        // Requests wait four times as long in total as the mgr reports for its queue.
        let busy = Servers { mgr: (100_000 + 3 * 200_000, 10), queue: 200_000, ..QUIET };
        // The first requests, before the mgr reports the load.
        run(&mut auto, Servers { tells: false, ..busy }, 20);
        run(&mut auto, busy, 500);
        assert!(auto.threshold() < quiet, "{}", auto.threshold());
        auto.queued(Duration::ZERO);
        assert_eq!(auto.threshold(), quiet);
        // A path that was measured only under load is unknown afterwards.
        let mut auto = Auto::default();
        auto.learn(Path::Direct, 100, Duration::from_micros(300), 1);
        auto.queued(Duration::from_micros(200));
        auto.learn(Path::Mgr, 100, Duration::from_millis(9), 1);
        auto.queued(Duration::ZERO);
        assert_eq!(auto.services[class(100)][0].nanos, 0);
    }

    /// A mount that starts while other mounts load the mgr, and their load ends.
    #[test]
    fn an_mgr_first_measured_under_load_is_not_assumed_infinitely_fast() {
        let mut auto = Auto::default();
        let busy = Servers { queue: 200_000, ..QUIET };
        auto.learn(Path::Direct, 64, Duration::from_nanos(QUIET.direct.0), 1);
        auto.queued(Duration::from_nanos(busy.queue));
        run(&mut auto, busy, 2000);
        let before = auto.threshold();
        auto.queued(Duration::ZERO);
        assert!(auto.threshold() <= before, "{} after {before}", auto.threshold());
        // Requests from then on measure the real times.
        for n in 0..4000 {
            request(&mut auto, QUIET, [16 << 10, 100_000][n % 2]);
        }
        assert!((16 << 10..100_000).contains(&auto.threshold()), "{}", auto.threshold());
    }

    #[test]
    fn one_reply_shows_the_start_or_the_end_of_an_overload() {
        let mut auto = Auto::default();
        run(&mut auto, QUIET, 20_000);
        let quiet = auto.threshold();
        auto.queued(Duration::from_millis(5));
        assert_eq!(auto.threshold(), 0);
        // Near the limit the state does not change.
        for wait in [290, 310, 200, 310, 160] {
            auto.queued(Duration::from_micros(wait));
            assert_eq!(auto.threshold(), 0, "{wait} us");
        }
        auto.queued(Duration::from_micros(1));
        assert_eq!(auto.threshold(), quiet, "what was known without the wait is known again");
    }

    #[test]
    fn an_mgr_that_does_not_reply_counts_as_overloaded() {
        let mut auto = Auto::default();
        run(&mut auto, QUIET, 20_000);
        let quiet = auto.threshold();
        assert_eq!(auto.ask(16, Duration::from_millis(1)), quiet.into(), "a long request may take as long");
        assert_eq!(auto.ask(16, Duration::from_secs(2)), 0.into());
        assert!((0..1000).all(|_| auto.ask(16, Duration::from_secs(2)) == 0.into()), "nobody is sent there to try");
        // The mgr answers again.
        assert_eq!(auto.ask(16, Duration::ZERO), quiet.into());
    }

    #[test]
    fn an_mgr_that_reports_no_queue_is_judged_by_its_times() {
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
    fn auto_leaves_an_mgr_at_once_whose_short_requests_are_slower_than_long_direct_ones() {
        let mut auto = Auto::default();
        for _ in 0..SETTLE {
            auto.learn(Path::Direct, 256 << 10, Duration::from_millis(20), 1);
        }
        assert_eq!(auto.threshold(), T_FIRST, "long ones alone say nothing of the mgr");
        for n in 0..6 * u64::from(KNOWN) {
            auto.learn(Path::Mgr, 100 << (n % 6), Duration::from_millis(200), 1);
        }
        assert!(auto.threshold() <= 65, "{}", auto.threshold());
        // A mgr that is fast with long requests is also fast with short ones.
        let mut auto = Auto { t: 0, ..Auto::default() };
        for n in 0..6 * u64::from(KNOWN) {
            auto.learn(Path::Direct, 100 << (n % 6), Duration::from_millis(20), 1);
            auto.learn(Path::Mgr, 16 << 10, Duration::from_millis(2), 1);
        }
        assert_eq!(path(100 << 5, auto.threshold()), Path::Mgr, "{}", auto.threshold());
    }

    #[test]
    fn a_path_without_measurements_is_tried_soon() {
        let mut auto = Auto::default();
        let ways: Vec<Path> = (0..PROBE_FIRST).map(|_| way(&mut auto, 1000)).collect();
        assert_eq!(ways.iter().filter(|way| **way == Path::Direct).count(), 1);
        (0..KNOWN).for_each(|_| auto.learn(Path::Direct, 1000, Duration::from_millis(20), 1));
        assert!((0..100).all(|_| way(&mut auto, 1000) == Path::Mgr), "now it is known");
    }

    /// Ten clients that send 10 KiB each to servers that slow down with the number of clients: a single client is
    /// faster on the direct path, but together all lose.
    #[test]
    fn a_path_that_is_faster_for_one_client_and_slower_for_all_is_not_taken() {
        let mut clients = vec![Auto::default(); 10];
        let mut straight = 0;
        for _ in 0..200 {
            let ways: Vec<Path> = clients.iter_mut().map(|auto| way(auto, 10_000)).collect();
            let many = ways.iter().filter(|way| **way == Path::Direct).count() as u64;
            straight += many;
            for (auto, way) in clients.iter_mut().zip(ways) {
                // All on the mgr path: 7.1 ms each. One of them on the direct path: 5.6 ms for it. All on the direct
                // path: 8.2 ms each.
                let micros = match way {
                    Path::Mgr => 7100 + 150 * many,
                    Path::Direct => 5600 + 290 * (many - 1),
                };
                auto.learn(way, 10_000, Duration::from_micros(micros), 1);
            }
        }
        assert!(straight <= 10 * u64::from(KNOWN), "{straight} of 2000");
        // If the mgr is slower by more than that, all clients leave it.
        for _ in 0..200 {
            for auto in &mut clients {
                let way = way(auto, 10_000);
                auto.learn(way, 10_000, Duration::from_micros(if way == Path::Mgr { 14_000 } else { 8_200 }), 1);
            }
        }
        assert!(clients.iter().all(|auto| auto.threshold() <= 10_000));
    }

    /// Eight iods that each handle one request, and a mgr that handles requests one after the other.
    #[test]
    fn parallel_servers_count_together() {
        let mut auto = Auto::default();
        for _ in 0..10 {
            (0..8).for_each(|_| auto.learn(Path::Direct, 1 << 20, Duration::from_millis(90), 8));
            // A probe.
            auto.learn(Path::Mgr, 1 << 20, Duration::from_millis(42), 1);
            assert_eq!(path(1 << 20, auto.threshold()), Path::Direct);
        }
        // Many requests at once, which wait for one another.
        for n in 1..=160 {
            auto.learn(Path::Mgr, 1 << 20, Duration::from_millis(6 * (n % 8 + 1)), 8);
        }
        assert_eq!(path(1 << 20, auto.threshold()), Path::Mgr);
    }

    proptest::proptest! {
        #[test]
        fn any_measured_times_give_a_valid_threshold(samples in proptest::collection::vec(
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
