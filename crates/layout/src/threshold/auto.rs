//! The adaptive write threshold T. It compares the measured service times of the mgr path and the direct path by
//! request size, and accounts for the queue delay of the mgr.

use super::{ALWAYS_MGR, Path, ThresholdChoice, path};
use std::time::Duration;

/// Number of size classes of requests. The first class has requests of up to 64 bytes, and the limit of each class is
/// twice the limit of the class before. The last class has all requests over 512 KiB.
const CLASSES: usize = 15;
/// Base-2 logarithm of the largest request length, in bytes, in the first size class.
const FIRST_LOG: u32 = 6;
/// Initial value of the threshold T in bytes, which is valid until the client has measured service times.
const T_FIRST: u64 = 64 << 10;
/// Reciprocal of the weight of a new sample in a moving average of service times.
const WEIGHT: u64 = 8;
/// Reciprocal of the hysteresis margin: the threshold changes only if the change saves more than 1/`MARGIN` of the
/// service time of the requests that would move to the other path.
const MARGIN: u64 = 8;
/// Probe interval, in requests, for a path with old measurements. While the measurements of the path that T does not
/// select are old, one of so many requests takes this path as a probe.
const PROBE: u32 = 64;
/// Probe interval for short requests, in requests, while the path that T does not select has too few samples.
const PROBE_FIRST: u32 = 8;
/// Probe interval for long requests, in requests, while the path that T does not select has no sample. The interval is
/// larger than for short requests, because a long request is expensive on the slower path.
const PROBE_LONG: u32 = 32;
/// Number of samples after which the measured service time of a path is reliable for short requests. For long
/// requests, one sample is enough.
const KNOWN: u32 = 2;
/// The algorithm adds this fraction (1/3) of the measured time to the time of short requests on the direct path.
///
/// A short request on the direct path costs more than the client can measure, because the mgr could have joined the
/// request with writes of other clients. Without the addition, every client chooses the direct path for a small
/// gain, and all clients become slower. In a measurement, ten clients wrote 10 KiB at a time. If all used the direct
/// path, each write took a seventh longer than if all used the mgr path. Yet a single client gained a fifth by
/// changing to the direct path.
const SPARED: u64 = 3;
/// Maximum length in bytes of a request that counts as short.
const SHORT_MAX: u64 = 64 << 10;
/// The client computes the threshold T again after this many samples.
const SETTLE: u32 = 4;
/// The measurements of a path count as old once the client has taken this many samples of the other path without a
/// sample of this path.
const OLD: u32 = 1024;
/// The mgr counts as loaded when its queue delay exceeds 1/`LOADED` of the direct path's service time.
const LOADED: u64 = 4;
/// A loaded mgr counts as unloaded again when its queue delay is at most 1/`CALM` of the direct path's service time.
const CALM: u64 = 8;
/// Reciprocal of the weight of a sample in the moving average for an unloaded mgr, if the sample exceeds the average.
/// The weight is small, because such a sample may be due to load that the mgr has not reported yet.
const RELUCTANCE: u64 = 64;
/// The mgr stops counting as overloaded when its queue delay is at most 1/`RECOVERED` of the direct path's service
/// time.
const RECOVERED: u64 = 2;

/// Measured service times of one path for one size class.
#[derive(Clone, Copy, Default, Debug)]
struct Service {
    /// Moving average of the service time in nanoseconds, without the queue delay of the mgr; 0 if the time was not
    /// measured.
    nanos: u64,
    /// Moving average of the service time, in nanoseconds, over the samples taken while the mgr was not loaded. On a
    /// loaded mgr, requests also wait for locks and threads, so they take longer than the reported queue delay
    /// explains.
    calm: u64,
    /// Number of samples of this path and size class.
    samples: u32,
    /// Number of samples of the other path, in this size class, since the last sample of this path.
    age: u32,
}

/// An adaptive threshold T, which follows the request size at which both paths take equally long, with hysteresis.
///
/// The client measures the time of each request, and the mgr reports its queue delay: how long requests wait before
/// the mgr processes them. The delay is the same for all sizes. The client subtracts the reported delay from the
/// measured times, and adds the current delay when it compares the paths. So when the mgr becomes busy, all times of
/// the mgr path rise at once, and T decreases.
///
/// T is the boundary between two size classes that minimizes the total time of one request of each class. While the
/// queue delay exceeds the service time of the direct path, the mgr is overloaded and T is 0. A few requests probe
/// the path that T does not select, to measure the service time of this path.
#[derive(Clone, Debug)]
pub struct Auto {
    /// Measured service times by size class; index 0 is the mgr path, index 1 the direct path.
    services: [[Service; 2]; CLASSES],
    t: u64,
    /// Number of requests by size class for which the client has asked for the threshold.
    asked: [u32; CLASSES],
    learnt: u32,
    /// The queue delay that the mgr reported last, in nanoseconds.
    told: u64,
    /// A lower bound of the queue delay in nanoseconds, which follows from the age of the oldest unanswered request to
    /// the mgr.
    seen: u64,
    /// Whether the queue delay is a large part of the direct path's service time (see [`LOADED`]).
    loaded: bool,
    /// Whether the queue delay exceeds the direct path's service time.
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

/// Returns the size class of a request of `len` bytes.
fn class(len: u64) -> usize {
    // Base-2 logarithm of the request length, rounded up.
    let log = u64::BITS - len.saturating_sub(1).leading_zeros();
    (log.saturating_sub(FIRST_LOG) as usize).min(CLASSES - 1)
}

/// Returns the threshold with which the requests of the first `classes` size classes take the mgr path.
fn boundary(classes: usize) -> u64 {
    match classes {
        0 => 0,
        CLASSES => ALWAYS_MGR,
        classes => (1 << (FIRST_LOG + classes as u32 - 1)) + 1,
    }
}

/// Returns whether all requests of a size class count as short.
fn is_short(class: usize) -> bool {
    boundary(class + 1) <= SHORT_MAX + 1
}

impl Service {
    /// Returns whether this path has enough samples of this size class for a reliable service time.
    fn is_known(&self, class: usize) -> bool {
        self.samples >= if is_short(class) { KNOWN } else { 1 }
    }
}

/// Returns `calm`, the average service time of an unloaded mgr, updated with `sample`. The average rises slowly,
/// because the first requests of a load peak are measured before the mgr reports the load.
fn calmer(calm: u64, sample: u64) -> u64 {
    match calm {
        0 => sample,
        calm if sample < calm => calm - (calm - sample) / WEIGHT,
        calm => calm + (sample - calm).min(3 * calm) / RELUCTANCE,
    }
}

/// Returns a time in nanoseconds, limited so that sums of times do not overflow.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / (4 * WEIGHT))
}

impl Auto {
    /// Returns the current threshold T.
    pub fn threshold(&self) -> u64 {
        if self.overloaded { 0 } else { self.t }
    }

    /// Returns the threshold T for a request of `len` bytes. For some requests also returns the path that T does not
    /// select, as a probe. `waiting` is the age of the oldest unanswered request to the mgr; zero if all requests are
    /// answered.
    pub fn ask(&mut self, len: u64, waiting: Duration) -> ThresholdChoice {
        // If the oldest unanswered request has waited longer than the longest service time of the mgr, the excess is
        // due to the queue delay.
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
        // Do not probe the mgr path while the mgr is overloaded and has not answered all requests of this client.
        let silent = now == Path::Direct && seen > 0 && self.overloaded;
        if !(unknown || other.age > OLD) || silent || !asked.is_multiple_of(every) {
            return t.into();
        }
        ThresholdChoice { t, probe: Some(if now == Path::Mgr { Path::Direct } else { Path::Mgr }) }
    }

    /// Records that a request of `len` bytes took the time `took` on the path `way`, with `together` requests in flight
    /// on this path. The sample is `took` divided by `together`, because requests in flight share the throughput of the
    /// servers.
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
            // The moving average of this path's service time is old, so the new sample gets half of the weight.
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

    /// Records the queue delay that the mgr has reported.
    pub fn queued(&mut self, delay: Duration) {
        // The mgr reports an average of its queue delay, so store it without averaging it again.
        self.told = nanos(delay);
        self.weigh();
        self.settle();
    }

    fn queue(&self) -> u64 {
        self.told.max(self.seen)
    }

    /// Updates whether the mgr counts as loaded and as overloaded, from its queue delay.
    fn weigh(&mut self) {
        let queue = self.queue();
        // Compare the queue delay with the service time of the smallest measured size class on the direct path.
        // Requests of smaller size classes take no longer.
        let Some(straight) = self.services.iter().map(|[_, direct]| direct.nanos).find(|nanos| *nanos > 0) else {
            return;
        };
        let was = self.loaded;
        self.loaded = queue > straight / if was { CALM } else { LOADED };
        if was && !self.loaded {
            // The mgr is no longer loaded, so the service times that were measured under load no longer apply. Replace
            // them by the averages for an unloaded mgr (`Service::calm`).
            for [mgr, _] in &mut self.services {
                *mgr = if mgr.calm == 0 { Service::default() } else { Service { nanos: mgr.calm, ..*mgr } };
            }
        }
        self.overloaded = match self.overloaded {
            false => queue > straight,
            true => queue > straight / RECOVERED,
        };
    }

    /// Returns the times of a request of this size class on the mgr path and on the direct path. The times include the
    /// queue delay and the costs of other clients ([`SPARED`]). Returns `None` if the measurements do not show which
    /// path is faster. If one path has no measurement, the time of a larger size class on this path is an upper bound.
    /// The bound suffices if it is below the time of the other path.
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
        // Returns the total time of one request of each measured size class, if the first `classes` classes take the
        // mgr path.
        let time = |classes: usize| -> u64 {
            let of = |(class, times): (usize, [u64; 2])| times[usize::from(class >= classes)] / CLASSES as u64;
            times.iter().enumerate().filter_map(|(class, times)| Some(of((class, (*times)?)))).sum()
        };
        let now = (0..=CLASSES).find(|classes| boundary(*classes) >= self.t).unwrap_or(CLASSES);
        // If several thresholds have the same total time, choose the one nearest to the current threshold.
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

    /// A simulated mgr and iods. The time of a request in nanoseconds is the sum of a fixed time, a time per byte, and
    /// on the mgr path the queue delay.
    #[derive(Clone, Copy)]
    struct Servers {
        mgr: (u64, u64),
        direct: (u64, u64),
        queue: u64,
        /// Whether the mgr reports its queue delay to the client.
        tells: bool,
    }

    /// An unloaded mgr. The paths take equally long where 100 us + 10 ns/byte equals 300 us + 2 ns/byte: at 25,000
    /// bytes.
    const QUIET: Servers = Servers { mgr: (100_000, 10), direct: (300_000, 2), queue: 0, tells: true };
    /// The thresholds that are at most one size class away from 25,000 bytes, where the paths take equally long.
    const CROSSING: std::ops::RangeInclusive<u64> = 16 << 10..=(64 << 10) + 1;

    /// Returns the path that a request takes. If the adaptive threshold asks for a probe, this is the path to probe.
    fn way(auto: &mut Auto, len: u64) -> Path {
        let choice = auto.ask(len, Duration::ZERO);
        choice.probe.unwrap_or(path(len, choice.t))
    }

    fn request(auto: &mut Auto, servers: Servers, len: u64) {
        let way = way(auto, len);
        let ((fixed, each), wait) = if way == Path::Mgr { (servers.mgr, servers.queue) } else { (servers.direct, 0) };
        auto.learn(way, len, Duration::from_nanos(fixed + each * len + wait), 1);
        if servers.tells && way == Path::Mgr {
            auto.queued(Duration::from_nanos(servers.queue));
        }
    }

    /// Runs `requests` simulated requests of 16 bytes to 2 MiB.
    fn run(auto: &mut Auto, servers: Servers, requests: u64) {
        (0..requests).for_each(|n| request(auto, servers, 1 << (4 + n * 7 % 18)));
    }

    #[test]
    fn auto_finds_and_follows_the_size_where_the_paths_cross() {
        let mut auto = Auto::default();
        run(&mut auto, QUIET, 20_000);
        assert!(CROSSING.contains(&auto.threshold()), "{}", auto.threshold());
        // Simulate a slow mgr: the measured time of every request is shorter on the direct path. But the algorithm adds
        // a surcharge to the time of short requests on the direct path, so it chooses the mgr path for the shortest
        // requests. For requests of up to 8192 bytes, the two paths differ by less than the hysteresis margin.
        run(&mut auto, Servers { mgr: (400_000, 10), ..QUIET }, 200_000);
        assert!((1 << 10..=8193).contains(&auto.threshold()), "{}", auto.threshold());
        // Simulate a mgr that is so slow that all requests take the direct path.
        run(&mut auto, Servers { mgr: (5_000_000, 10), ..QUIET }, 200_000);
        assert_eq!(auto.threshold(), 0);
        // Simulate an unloaded mgr again.
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
            // Add a random error of at most 5 percent to each measured time.
            let noise = 95 + n * 2_654_435_761 % 11;
            auto.learn(way, len, Duration::from_nanos((fixed + each * len) * noise / 100), 1);
            // Report a random queue delay of less than 5 us, which is small compared with the service times.
            auto.queued(Duration::from_nanos(n * 7919 % 5000));
            assert_eq!(auto.threshold(), before);
        }
    }

    #[test]
    fn auto_falls_with_mgr_load_and_rises_again() {
        let mut auto = Auto::default();
        run(&mut auto, QUIET, 20_000);
        let quiet = auto.threshold();
        // The queue delay increases step by step, and the mgr reports each value. T must never rise, and must be 0 at
        // the end.
        let mut before = quiet;
        for step in 1..=20 {
            let queue = step * 20_000;
            run(&mut auto, Servers { queue, ..QUIET }, 64);
            assert!(auto.threshold() <= before, "{queue}: {} after {before}", auto.threshold());
            before = auto.threshold();
            if queue == 160_000 {
                // With this queue delay, the two paths take equally long for requests of 5000 bytes.
                assert!((1..quiet).contains(&before), "{before} at {queue}");
            }
        }
        assert_eq!(before, 0, "requests wait longer there than they take straight");
        // The queue delay decreases step by step. T must never fall. At the end, T must be near 25,000 bytes, where the
        // two paths of an unloaded mgr take equally long.
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
        // A loaded mgr: requests take 600 us longer than without load, in addition to the queue delay of 200 us that
        // the mgr reports.
        let busy = Servers { mgr: (100_000 + 3 * 200_000, 10), queue: 200_000, ..QUIET };
        // The load begins. The mgr reports its queue delay only after the first 20 requests under this load.
        run(&mut auto, Servers { tells: false, ..busy }, 20);
        run(&mut auto, busy, 500);
        assert!(auto.threshold() < quiet, "{}", auto.threshold());
        auto.queued(Duration::ZERO);
        assert_eq!(auto.threshold(), quiet);
        // A measurement of the mgr path under load no longer counts when the load ends, so a path that was measured
        // only under load becomes unmeasured.
        let mut auto = Auto::default();
        auto.learn(Path::Direct, 100, Duration::from_micros(300), 1);
        auto.queued(Duration::from_micros(200));
        auto.learn(Path::Mgr, 100, Duration::from_millis(9), 1);
        auto.queued(Duration::ZERO);
        assert_eq!(auto.services[class(100)][0].nanos, 0);
    }

    /// Tests a mount that starts while other mounts load the mgr. The load of the other mounts ends later.
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
        // Requests that are sent after the end of the load measure the service times of an unloaded mgr.
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
        // The overload continues while each queue delay exceeds the limit at which an overload ends (hysteresis).
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
        // The mgr has answered all requests (no request waits), so T returns to its value before the overload.
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
        // On the mgr path, only requests of 16 KiB were measured, and they were fast. Shorter requests take at most
        // as long, so shorter requests take the mgr path too.
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

    /// Tests ten clients that send 10 KiB each to servers that become slower with more clients. If only one client uses
    /// the direct path, this client is faster than on the mgr path; if all clients use it, all are slower.
    #[test]
    fn a_path_that_is_faster_for_one_client_and_slower_for_all_is_not_taken() {
        let mut clients = vec![Auto::default(); 10];
        let mut straight = 0;
        for _ in 0..200 {
            let ways: Vec<Path> = clients.iter_mut().map(|auto| way(auto, 10_000)).collect();
            let many = ways.iter().filter(|way| **way == Path::Direct).count() as u64;
            straight += many;
            for (auto, way) in clients.iter_mut().zip(ways) {
                // If all clients use the mgr path, a request takes 7.1 ms. If one client uses the direct path, its
                // request takes 5.6 ms. If all clients use the direct path, a request takes 8.2 ms.
                let micros = match way {
                    Path::Mgr => 7100 + 150 * many,
                    Path::Direct => 5600 + 290 * (many - 1),
                };
                auto.learn(way, 10_000, Duration::from_micros(micros), 1);
            }
        }
        assert!(straight <= 10 * u64::from(KNOWN), "{straight} of 2000");
        // The mgr path is now slower than the direct path by more than the surcharge that the algorithm adds to short
        // requests on the direct path (`SPARED`). So all clients change to the direct path.
        for _ in 0..200 {
            for auto in &mut clients {
                let way = way(auto, 10_000);
                auto.learn(way, 10_000, Duration::from_micros(if way == Path::Mgr { 14_000 } else { 8_200 }), 1);
            }
        }
        assert!(clients.iter().all(|auto| auto.threshold() <= 10_000));
    }

    /// Tests the comparison of parallel iods with a serial mgr. Eight iods handle one request each in parallel; the mgr
    /// handles requests one after the other.
    #[test]
    fn parallel_servers_count_together() {
        let mut auto = Auto::default();
        for _ in 0..10 {
            (0..8).for_each(|_| auto.learn(Path::Direct, 1 << 20, Duration::from_millis(90), 8));
            // With one request in flight, the mgr takes 42 ms per request. Eight iods in parallel take 90 ms for eight
            // requests.
            auto.learn(Path::Mgr, 1 << 20, Duration::from_millis(42), 1);
            assert_eq!(path(1 << 20, auto.threshold()), Path::Direct);
        }
        // If eight requests to the mgr are in flight, each request waits for the others, so each reply takes longer.
        // But the mgr completes the eight requests in less time than the direct path.
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
