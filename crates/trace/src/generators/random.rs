//! Generator for requests at random offsets of one file.

use crate::rng::Rng;
use crate::{Action, Op};

pub(super) fn generate(seed: u64, size: u64, request: u32, count: u32, clients: u32, action: Action) -> Vec<Vec<Op>> {
    let places = size / u64::from(request);
    let one = |client: u32| {
        let mut rng = Rng::new(seed ^ (u64::from(client) << 32));
        let mut ops = vec![Op::of(Action::Open, 0)];
        ops.extend((0..count).map(|_| Op {
            action,
            file: 0,
            offset: rng.below(places) * u64::from(request),
            len: request,
        }));
        ops.extend((action == Action::Write).then(|| Op::of(Action::Fsync, 0)));
        ops.push(Op::of(Action::Close, 0));
        ops
    };
    (0..clients).map(one).collect()
}

#[cfg(test)]
mod tests {
    use crate::{Action, Generator};

    #[test]
    fn a_random_trace_covers_the_file_and_stays_inside() {
        let generator = Generator::Random { size: 32 << 20, request: 4096, count: 4000, clients: 2, read: false };
        let trace = generator.generate(1).unwrap();
        assert_eq!(trace.bytes(Action::Write), 8000 * 4096);
        let mut quarters = [0; 4];
        for op in trace.ops().filter(|op| op.action == Action::Write) {
            assert!(op.offset % 4096 == 0 && op.end() <= 32 << 20);
            quarters[(op.offset / (8 << 20)) as usize] += 1;
        }
        assert!(quarters.iter().all(|quarter| (1800..2200).contains(quarter)), "{quarters:?}");
        assert_eq!(generator.generate(1).unwrap(), trace);
        assert_ne!(generator.generate(2).unwrap(), trace);
        assert_ne!(trace.clients[0], trace.clients[1]);
    }
}
