//! Generator for sequential access to one file; each client accesses its own part of the file.

use crate::{Action, Op};

pub(super) fn generate(size: u64, request: u32, clients: u32, action: Action) -> Vec<Vec<Op>> {
    let requests = size.div_ceil(u64::from(request));
    let each = requests.div_ceil(u64::from(clients));
    let part = |client: u32| {
        let mine = (u64::from(client) * each).min(requests)..((u64::from(client) + 1) * each).min(requests);
        let at = mine.map(|number| number * u64::from(request));
        let ops = at.map(|offset| {
            let len = (size - offset).min(u64::from(request)) as u32;
            Op { action, file: 0, offset, len }
        });
        let fsync = (action == Action::Write).then(|| Op::of(Action::Fsync, 0));
        let end = fsync.into_iter().chain([Op::of(Action::Close, 0)]);
        [Op::of(Action::Open, 0)].into_iter().chain(ops).chain(end).collect()
    };
    (0..clients).map(part).collect()
}

#[cfg(test)]
mod tests {
    use crate::written::Written;
    use crate::{Action, Generator};

    #[test]
    fn a_sequential_trace_covers_every_byte_once_in_order() {
        for (size, request, clients) in [(1 << 20, 4096, 1), (1_000_001, 777, 3), (10, 16, 4), (0, 1, 1)] {
            let trace = Generator::Sequential { size, request, clients, read: false }.generate(0).unwrap();
            assert_eq!((trace.clients.len(), trace.bytes(Action::Write)), (clients as usize, size));
            let mut written = Written::default();
            for ops in &trace.clients {
                let writes: Vec<_> = ops.iter().filter(|op| op.action == Action::Write).collect();
                assert!(writes.windows(2).all(|two| two[0].end() == two[1].offset));
                writes.iter().for_each(|op| written.write(op.offset, u64::from(op.len), 1));
            }
            assert!(written.runs(0, size).iter().all(|run| run.number == 1), "no byte is left out");
        }
    }
}
