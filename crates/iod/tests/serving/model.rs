//! Random histories of operations on objects of an iod. After each operation, the test compares the objects with plain
//! byte vectors.

use std::collections::HashMap;

use proptest::prelude::*;
use wire::native::{PieceKind, SeekWhat};

use crate::cluster::{Client, Server, pattern};

#[derive(Clone, Debug)]
enum Op {
    Write { parts: Vec<(u32, u32)>, stable: bool },
    Read { parts: Vec<(u32, u32)> },
    Truncate(u32),
    Punch(u32, u32),
    Reserve(u32, u32),
    Seek(u32),
    Commit,
    Remove,
    Restart,
}

/// Draws an offset in an object: an arbitrary offset, an offset near a page boundary, or zero.
fn offset() -> impl Strategy<Value = u32> {
    prop_oneof![
        0..300_000u32,
        (0..60u32, 0..5u32).prop_map(|(page, off)| (page * 4096 + off).saturating_sub(2)),
        Just(0),
    ]
}

fn len() -> impl Strategy<Value = u32> {
    prop_oneof![0..100u32, 0..100_000u32, (0..20u32).prop_map(|pages| pages * 4096)]
}

fn op() -> impl Strategy<Value = (u64, Op)> {
    let parts = || prop::collection::vec((offset(), len()), 1..6);
    let op = prop_oneof![
        6 => (parts(), prop::bool::weighted(0.1)).prop_map(|(parts, stable)| Op::Write { parts, stable }),
        6 => parts().prop_map(|parts| Op::Read { parts }),
        2 => offset().prop_map(Op::Truncate),
        2 => (offset(), len()).prop_map(|(offset, len)| Op::Punch(offset, len)),
        2 => (offset(), len()).prop_map(|(offset, len)| Op::Reserve(offset, len)),
        2 => offset().prop_map(Op::Seek),
        1 => Just(Op::Commit),
        1 => Just(Op::Remove),
        1 => Just(Op::Restart),
    ];
    (1..4u64, op)
}

fn slice(model: &[u8], offset: u32, len: u32) -> &[u8] {
    let start = (offset as usize).min(model.len());
    &model[start..(start + len as usize).min(model.len())]
}

fn apply(client: &mut Client, model: &mut Vec<u8>, object: u64, op: &Op, seed: u64) {
    match op {
        Op::Write { parts, stable } => {
            let blocks: Vec<_> =
                parts.iter().map(|(offset, len)| pattern(*len as usize, seed ^ u64::from(*offset))).collect();
            let parts: Vec<_> = parts.iter().zip(&blocks).map(|((o, _), b)| (u64::from(*o), &b[..])).collect();
            let reply = client.write_list(object, *stable, &parts).unwrap();
            for (offset, data) in parts {
                let end = offset as usize + data.len();
                if !data.is_empty() && model.len() < end {
                    model.resize(end, 0);
                }
                if !data.is_empty() {
                    model[offset as usize..end].copy_from_slice(data);
                }
            }
            assert_eq!((reply.size, reply.stable), (model.len() as u64, *stable));
        }
        Op::Read { parts } => {
            let extents: Vec<_> = parts.iter().map(|(o, l)| (u64::from(*o), *l)).collect();
            let reply = client.read_list(object, &extents).unwrap();
            assert_eq!(reply.head.size, model.len() as u64);
            let expected: Vec<u8> = parts.iter().flat_map(|(o, l)| slice(model, *o, *l)).copied().collect();
            assert!(crate::cluster::flat(&reply) == expected, "wrong bytes in {parts:?}");
            let beyond: u64 =
                reply.head.pieces.iter().filter(|p| p.kind == PieceKind::Beyond).map(|p| u64::from(p.len)).sum();
            let asked: u64 = extents.iter().map(|(_, len)| u64::from(*len)).sum();
            assert_eq!(beyond, asked - expected.len() as u64);
        }
        Op::Truncate(size) => {
            assert_eq!(client.truncate(object, u64::from(*size)).unwrap().size, u64::from(*size));
            model.resize(*size as usize, 0);
        }
        Op::Punch(offset, len) => {
            client.punch(object, u64::from(*offset), u64::from(*len)).unwrap();
            let end = (*offset as usize + *len as usize).min(model.len());
            model[(*offset as usize).min(end)..end].fill(0);
        }
        Op::Reserve(offset, len) => {
            client.reserve(object, u64::from(*offset), u64::from(*len)).unwrap();
            let end = (*offset + *len) as usize;
            if *len > 0 && model.len() < end {
                model.resize(end, 0);
            }
        }
        Op::Seek(offset) => {
            let size = model.len() as u64;
            let from = u64::from(*offset);
            let data = client.seek(object, from, SeekWhat::Data).unwrap();
            let hole = client.seek(object, from, SeekWhat::Hole).unwrap();
            if from >= size {
                assert_eq!((data, hole), (None, None));
                return;
            }
            // A zeroed range may be data or a hole. Bytes that SEEK skips or reports as a hole are zeros in the model.
            let first = data.unwrap_or(size);
            assert!(from <= first && first <= size);
            assert!(model[*offset as usize..first as usize].iter().all(|b| *b == 0));
            let hole = hole.unwrap();
            assert!(from <= hole && hole <= size);
            assert!(hole == size || model[hole as usize] == 0);
        }
        Op::Commit => assert_eq!(client.commit(object).unwrap().size, model.len() as u64),
        Op::Remove => {
            client.remove(object).unwrap();
            model.clear();
        }
        Op::Restart => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_history_of_operations_matches_the_model(ops in prop::collection::vec(op(), 1..60), way in 0..3u32) {
        let mut server = Server::new();
        let connect = |server: &Server| match way {
            0 => server.client(),
            1 => server.client_with(false),
            _ => server.local_client(false),
        };
        let mut client = connect(&server);
        let mut models: HashMap<u64, Vec<u8>> = HashMap::new();
        for (index, (object, op)) in ops.iter().enumerate() {
            if matches!(op, Op::Restart) {
                server.restart();
                client = connect(&server);
            }
            apply(&mut client, models.entry(*object).or_default(), *object, op, index as u64);
        }
        for (object, model) in &mut models {
            let size = model.len() as u32;
            apply(&mut client, model, *object, &Op::Read { parts: vec![(0, size + 5)] }, 0);
        }
    }
}
