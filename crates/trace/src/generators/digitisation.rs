//! Generator for the digitisation step of simulated particle-physics experiments, after Hildebrand, Ward and Honeyman
//! ("Large files, small writes, and pNFS", 2006, section 6.3).
//!
//! The client writes one file at random offsets, 650 MB for 500 events. 96 % of the requests are shorter than 32 KB
//! and carry 5 % of the bytes. Half of all requests are shorter than 1 KB, and 87 % are shorter than 4 KB. The other
//! requests are 275 KB and 1 MB long. The paper counts more than 900 fsyncs in 50 events.

use crate::rng::Rng;
use crate::{Action, Op};

/// Number of requests in 100 events.
const REQUESTS: u64 = 4642;
/// Number of fsyncs in 100 events.
const FSYNCS: u64 = 1850;
/// Lengths of the large requests, equally frequent; together they are 4 % of all requests.
const LARGE: [u32; 2] = [275 << 10, 1 << 20];
/// Percentages of requests that are shorter than 1 KiB, and shorter than 4 KiB.
const TINY: usize = 49;
const SMALL: usize = 87;
/// Upper bound of the number of operations per event.
pub(super) const OPS_EACH: u64 = 100;

pub(super) fn generate(seed: u64, events: u32, fsync: bool) -> Vec<Op> {
    let mut rng = Rng::new(seed);
    let count = (u64::from(events) * REQUESTS / 100) as usize;
    let mut lens: Vec<u32> = (0..count).map(|n| length(&mut rng, n, count)).collect();
    rng.shuffle(&mut lens);
    // Shuffle the requests, so that the client does not send them in the order of their offsets.
    let mut placed: Vec<usize> = (0..count).collect();
    rng.shuffle(&mut placed);
    let (mut offsets, mut at) = (vec![0; count], 0);
    for request in placed {
        offsets[request] = at;
        at += u64::from(lens[request]);
    }
    let mut ops = vec![Op::of(Action::Open, 0)];
    let fsyncs = |requests: usize| requests as u64 * FSYNCS / REQUESTS;
    for (n, (offset, len)) in offsets.into_iter().zip(lens).enumerate() {
        ops.push(Op::write(0, offset, len));
        if fsync && fsyncs(n + 1) > fsyncs(n) {
            ops.push(Op::of(Action::Fsync, 0));
        }
    }
    ops.extend([Op::of(Action::Fsync, 0), Op::of(Action::Close, 0)]);
    ops
}

/// Returns the length of request `n` of `count`. The number `n` determines the size class, so that the share of each
/// class is exact.
fn length(rng: &mut Rng, n: usize, count: usize) -> u32 {
    // The last four percent of the requests get the two large lengths in turn.
    let large = (count * 4).div_ceil(100);
    match n * 100 / count.max(1) {
        _ if n + large >= count => LARGE[n % 2],
        hundredth if hundredth < TINY => rng.between(16, 584) as u32,
        hundredth if hundredth < SMALL => rng.between(1024, 2475) as u32,
        // Lengths from 4 KiB to 32 KiB: most are close to 4 KiB, and few reach 32 KiB.
        _ => (4096.0 + 28671.0 * rng.unit().powi(11)) as u32,
    }
}

#[cfg(test)]
mod tests {
    use crate::written::Written;
    use crate::{Action, Generator, Op};

    #[test]
    fn the_trace_has_the_request_shares_of_the_experiment() {
        for (events, seed) in [(50, 1), (500, 1), (500, 2)] {
            let trace = Generator::Digitisation { events, fsync: true }.generate(seed).unwrap();
            let writes: Vec<&Op> = trace.ops().filter(|op| op.action == Action::Write).collect();
            let share = |end: u32| {
                let below = writes.iter().filter(|op| op.len < end);
                let bytes: u64 = below.clone().map(|op| u64::from(op.len)).sum();
                let all = trace.bytes(Action::Write) as f64;
                (below.count() as f64 / writes.len() as f64, bytes as f64 / all)
            };
            let near = |found: f64, wanted: f64, most: f64| {
                assert!((found - wanted).abs() <= most, "{found} and not {wanted}");
            };
            near(trace.bytes(Action::Write) as f64 / (1.3e6 * f64::from(events)), 1.0, 0.01);
            near(share(32 << 10).0, 0.96, 0.001);
            near(share(32 << 10).1, 0.05, 0.002);
            near(share(1 << 10).0, 0.49, 0.001);
            near(share(4 << 10).0, 0.87, 0.001);
            let large: Vec<u32> = writes.iter().map(|op| op.len).filter(|len| *len >= 32 << 10).collect();
            let long = large.iter().filter(|len| **len == 1 << 20).count();
            assert!(large.iter().all(|len| [275 << 10, 1 << 20].contains(len)));
            assert!(long.abs_diff(large.len() - long) <= 1);
            let fsyncs = trace.ops().filter(|op| op.action == Action::Fsync).count();
            near(fsyncs as f64 / f64::from(events), 18.5, 0.1);
        }
    }

    #[test]
    fn offsets_are_random_and_no_byte_is_written_twice() {
        let trace = Generator::Digitisation { events: 50, fsync: false }.generate(3).unwrap();
        let writes: Vec<&Op> = trace.ops().filter(|op| op.action == Action::Write).collect();
        let size = trace.bytes(Action::Write);
        let mut written = Written::default();
        writes.iter().for_each(|op| written.write(op.offset, u64::from(op.len), 1));
        assert_eq!(written.end(), size);
        assert!(written.runs(0, size).iter().all(|run| run.number == 1));
        let behind = writes.windows(2).filter(|two| two[0].end() == two[1].offset).count();
        assert!(behind * 100 < writes.len(), "{behind} of {} follow the one before", writes.len());
        let ahead = writes.windows(2).filter(|two| two[0].offset < two[1].offset).count();
        assert!((writes.len() * 45 / 100..writes.len() * 55 / 100).contains(&ahead));
        assert_eq!(trace.ops().filter(|op| op.action == Action::Fsync).count(), 1, "the one at the end");
    }
}
