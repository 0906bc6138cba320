//! Generator for strided writes: clients write the records of one file in round-robin order.

use crate::{Action, Op};

pub(super) fn generate(request: u32, count: u32, clients: u32) -> Vec<Vec<Op>> {
    let one = |client: u32| {
        let record = |turn: u32| u64::from(turn) * u64::from(clients) + u64::from(client);
        let writes = (0..count).map(|turn| Op::write(0, record(turn) * u64::from(request), request));
        let end = [Op::of(Action::Fsync, 0), Op::of(Action::Close, 0)];
        [Op::of(Action::Open, 0)].into_iter().chain(writes).chain(end).collect()
    };
    (0..clients).map(one).collect()
}

#[cfg(test)]
mod tests {
    use crate::{Action, Generator};

    #[test]
    fn eight_clients_fill_a_file_together() {
        let trace = Generator::Strided { request: 4096, count: 100, clients: 8 }.generate(0).unwrap();
        let mut places: Vec<u64> =
            trace.ops().filter(|op| op.action == Action::Write).map(|op| op.offset / 4096).collect();
        places.sort_unstable();
        assert_eq!(places, (0..800).collect::<Vec<_>>());
        assert_eq!(trace.clients[3][2].offset, 11 * 4096, "the second record of the fourth client");
    }
}
