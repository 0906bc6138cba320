//! Tests of one shard of the index: random histories of registrations, syncs and restarts, against a model that keeps
//! every registration in the order of its arrival.

use log_index::{Index, LOGS_MAX, LogNumber, PENDING_MAX, Record, Refused, Run, Source};
use proptest::prelude::*;
use types::ByteRange;
use types::limits::FILE_SIZE_MAX;

const SIZE: u64 = 96;

fn range(offset: u64, len: u64) -> ByteRange {
    ByteRange { offset, len }
}

fn in_log(log: u32, position: u64) -> Source {
    Source::Log { log: LogNumber(log), position }
}

/// A registration in the model.
#[derive(Clone, Debug)]
struct Registered {
    log: u32,
    runs: Vec<Run>,
    is_durable: bool,
}

/// Returns where each byte of the file is, if the shard knows these registrations.
fn bytes<'a>(registered: impl Iterator<Item = &'a Registered>) -> Vec<Source> {
    let mut bytes = vec![Source::Base; SIZE as usize];
    for run in registered.flat_map(|registered| &registered.runs) {
        put(&mut bytes, run);
    }
    bytes
}

fn put(bytes: &mut [Source], run: &Run) {
    for (piece, byte) in (0..run.count()).flat_map(|piece| (0..run.first().len).map(move |byte| (piece, byte))) {
        if let Some(place) = bytes.get_mut((run.first().offset + piece * run.stride() + byte) as usize) {
            *place = match run.source() {
                Source::Base => Source::Base,
                source => source.after(piece * run.first().len + byte),
            };
        }
    }
}

/// Returns where each byte of the file is, according to a lookup.
fn found(index: &Index, only_durable: bool, max: usize) -> Vec<Source> {
    let mut bytes = vec![Source::Base; SIZE as usize];
    let mut at = 0;
    while at < SIZE {
        let (covered, runs) = index.lookup(range(at, SIZE - at), only_durable, max);
        assert!(covered.offset == at && covered.len > 0 && runs.len() <= max);
        for run in &runs {
            assert!(run.bounds().offset >= at && run.bounds().end() <= covered.end());
            put(&mut bytes, run);
        }
        at = covered.end();
    }
    bytes
}

#[derive(Clone, Debug)]
enum Step {
    Register(u32, Vec<Run>),
    Confirm(u32),
    Checkpoint,
    Restart,
}

fn run() -> impl Strategy<Value = Run> {
    (0..SIZE - 40, 1..12_u64, 1..6_u64, 1..5_u64, 0..4_u32, 0..1000_u64).prop_map(
        |(offset, len, gap, count, log, at)| {
            let source = if log == 0 { Source::Base } else { in_log(log, at) };
            let count = count.min(1 + (SIZE - offset - len) / (len + gap));
            Run::new(range(offset, len), source, len + gap, count).unwrap()
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4_u32, prop::collection::vec(run(), 1..4)).prop_map(|(log, runs)| Step::Register(log, runs)),
        3 => (0..4_u32).prop_map(Step::Confirm),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whichever registration becomes durable first, the one that arrived later wins.
    #[test]
    fn the_later_registration_wins(steps in prop::collection::vec(step(), 1..40)) {
        let (mut index, mut disk, mut model) = (Index::default(), Vec::<Record>::new(), Vec::<Registered>::new());
        let mut sequence = 0;
        for step in steps {
            match step {
                Step::Register(log, runs) => {
                    sequence += 1;
                    index.register(LogNumber(log), sequence, runs.clone()).unwrap();
                    // The repetition of a request has no effect. The log 0 has no sequence, so the mgr may repeat only
                    // its last request.
                    index.register(LogNumber(log), sequence, runs.clone()).unwrap();
                    model.push(Registered { log, runs, is_durable: false });
                }
                Step::Confirm(log) => {
                    if let Some(record) = index.confirmation(LogNumber(log), sequence) {
                        let record = Record::decode(&record.encode()).unwrap();
                        disk.push(record.clone());
                        index.apply(record);
                    }
                    prop_assert!(index.confirmation(LogNumber(log), sequence).is_none());
                    for registered in model.iter_mut().filter(|registered| registered.log == log) {
                        registered.is_durable = true;
                    }
                }
                Step::Checkpoint => {
                    disk = index.checkpoint().map(|record| Record::decode(&record.encode()).unwrap()).collect();
                }
                Step::Restart => {
                    index = Index::restored(disk.clone());
                    model.retain(|registered| registered.is_durable);
                }
            }
            prop_assert_eq!(found(&index, false, 1000), bytes(model.iter()));
            prop_assert_eq!(found(&index, false, 2), bytes(model.iter()));
            let durable = bytes(model.iter().filter(|registered| registered.is_durable));
            prop_assert_eq!(found(&index, true, 1000), &durable[..]);
            let in_log = |bytes: &[Source]| bytes.iter().rposition(|byte| *byte != Source::Base).map_or(0, |at| at + 1);
            prop_assert!(index.end() >= in_log(&bytes(model.iter())) as u64);
            // A registration that later ones have replaced completely is not pending any more.
            prop_assert!(index.is_durable() || model.iter().any(|registered| !registered.is_durable));
        }
    }
}

#[test]
fn a_registration_becomes_durable_up_to_a_sequence_number() {
    let run = |offset, position| Run::single(range(offset, 4), in_log(1, position)).unwrap();
    let mut index = Index::default();
    index.register(LogNumber(1), 1, vec![run(0, 0)]).unwrap();
    index.register(LogNumber(1), 2, vec![run(8, 4)]).unwrap();
    let record = index.confirmation(LogNumber(1), 1).unwrap();
    assert_eq!(record, Record::Runs { log: LogNumber(1), sequence: 1, runs: vec![run(0, 0)] });
    index.apply(record);
    assert_eq!(index.lookup(range(0, 100), true, 9).1, [run(0, 0)]);
    assert_eq!(index.pending_runs(), 1);
    index.register(LogNumber(1), 2, vec![run(20, 8)]).unwrap();
    assert_eq!(index.end(), 12, "a repeated sequence number has no effect");
}

#[test]
fn a_registration_that_a_restart_lost_is_made_again() {
    let run = Run::single(range(0, 4), in_log(1, 0)).unwrap();
    let mut index = Index::default();
    index.register(LogNumber(1), 1, vec![run]).unwrap();
    let mut index = Index::restored(index.checkpoint().collect::<Vec<_>>());
    assert_eq!(index.end(), 0);
    index.register(LogNumber(1), 1, vec![run]).unwrap();
    assert_eq!(index.lookup(range(0, 9), false, 9).1, [run]);
}

#[test]
fn a_truncation_ends_the_logs() {
    let mut index = Index::default();
    let write = Run::single(range(10, 50), in_log(1, 0)).unwrap();
    index.register(LogNumber(1), 1, vec![write]).unwrap();
    let record = index.confirmation(LogNumber(1), 1).unwrap();
    index.apply(record);
    let rest = Run::single(range(20, FILE_SIZE_MAX - 20), Source::Base).unwrap();
    index.register(LogNumber(0), 0, vec![rest]).unwrap();
    assert_eq!((index.end(), index.lookup(range(0, 100), false, 9).1), (20, write.clip(range(0, 20))));
    let record = index.confirmation(LogNumber(0), 0).unwrap();
    index.apply(record);
    assert_eq!((index.end(), index.lookup(range(0, 100), true, 9).1), (20, write.clip(range(0, 20))));
    index.register(LogNumber(0), 0, vec![rest]).unwrap();
    assert!(index.is_durable(), "the second truncation changes nothing");

    // The bytes before the truncated ones are in the base already, so the truncation changes only the end.
    let write = Run::single(range(20, 40), in_log(1, 50)).unwrap();
    let base = |offset, len| Run::single(range(offset, len), Source::Base).unwrap();
    index.register(LogNumber(1), 2, vec![write, base(50, 5), base(55, 5)]).unwrap();
    index.register(LogNumber(0), 0, vec![base(52, FILE_SIZE_MAX - 52)]).unwrap();
    assert_eq!(index.end(), 52);
}

#[test]
fn log_numbers_are_never_given_twice() {
    let (mut index, mut disk, mut given) = (Index::default(), Vec::new(), Vec::new());
    for round in 0..500 {
        let log = loop {
            match index.next_log().unwrap() {
                Ok(log) => break log,
                Err(record) => {
                    disk.push(record.clone());
                    index.apply(record);
                }
            }
        };
        assert!(log.0 > 0 && log.0 < LOGS_MAX);
        given.push(log);
        match round % 50 {
            20 => disk = index.checkpoint().collect(),
            40 => index = Index::restored(disk.clone()),
            _ => {}
        }
    }
    assert!(given.is_sorted_by(|one, other| one < other));
    assert!(disk.len() <= 20, "{} records", disk.len());
    index.apply(Record::Logs(LOGS_MAX));
    let mut index = Index::restored([Record::Logs(LOGS_MAX)]);
    assert_eq!(index.next_log(), Err(Refused::Logs));
}

#[test]
fn a_shard_refuses_too_many_pending_runs() {
    let runs = |from: u64, count: u64| -> Vec<Run> {
        (from..from + count).map(|at| Run::single(range(3 * at, 1), in_log(1, 7 * at)).unwrap()).collect()
    };
    let mut index = Index::default();
    let max = PENDING_MAX as u64;
    index.register(LogNumber(1), 1, runs(0, max - 1)).unwrap();
    assert_eq!(index.register(LogNumber(1), 2, runs(max, 2)), Err(Refused::Pending));
    index.register(LogNumber(1), 2, runs(max, 1)).unwrap();
    assert_eq!(index.pending_runs(), PENDING_MAX);
    let record = index.confirmation(LogNumber(1), 2).unwrap();
    index.apply(record);
    assert_eq!((index.pending_runs(), index.durable_runs()), (0, PENDING_MAX));
    let memory = index.memory();
    assert!(memory < 40 * PENDING_MAX, "{memory} bytes for {PENDING_MAX} runs");
}
