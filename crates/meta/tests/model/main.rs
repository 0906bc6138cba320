//! Model test: compares random sequences of operations by several users with a reference model, on the in-memory and
//! the embedded store.

mod action;
#[path = "../common/block.rs"]
mod block;
mod compare;
mod reference;

use action::{Action, actions};
use compare::Pair;
use meta::{Embedded, Memory, merge};
use proptest::prelude::*;
use std::sync::Arc;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn memory_behaves_like_the_reference(actions in actions(200)) {
        let store = Arc::new(Memory::new(merge));
        run(actions, store.clone(), move |old| {
            drop(old);
            store.clone()
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn embedded_behaves_like_the_reference(actions in actions(100)) {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("meta");
        let store = Embedded::create(&path, [9; 16], merge).expect("store");
        run(actions, store, |old| {
            drop(old);
            Embedded::open(&path, merge).expect("store")
        });
    }
}

fn run<E: meta::engine::Engine>(actions: Vec<Action>, store: E, mut reopen: impl FnMut(meta::Namespace<E>) -> E) {
    let mut pair = Pair::new(store);
    for action in actions {
        match action {
            Action::Reopen => {
                pair.compare_all();
                pair = pair.reopen(&mut reopen);
                pair.compare_all();
            }
            action => pair.step(&action),
        }
    }
    pair.compare_all();
}
