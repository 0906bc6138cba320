//! Test with random requests: each operation of the server, with a few exceptions, succeeds at least once, and no
//! request makes the server panic. The fuzz target uses the same generator of requests.

#[path = "../../../../../fuzz/fuzz_targets/compound_ops.rs"]
mod fuzzed;

use crate::server::ops::REGISTERED;
use crate::testing::bench::play;
use proptest::prelude::*;
use wire::nfs4::{OP_BIND_CONN_TO_SESSION, OP_DESTROY_CLIENTID, OP_DESTROY_SESSION, OP_FREE_STATEID, OP_SEEK};

proptest! {
    #[test]
    fn random_requests_leave_the_state_tables_consistent(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        fuzzed::run(&bytes);
    }
}

/// Random requests test little if they never succeed, so each operation must succeed at least once.
#[test]
fn random_requests_reach_every_operation() {
    let mut random = 1u64;
    let mut byte = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 32) as u8
    };
    let mut reached = std::collections::HashMap::new();
    for _ in 0..400 {
        let bytes: Vec<u8> = (0..3000).map(|_| byte()).collect();
        for count in play(&bytes).ops {
            let sum: &mut (u64, u64) = reached.entry(count.number).or_default();
            *sum = (sum.0 + count.ok, sum.1 + count.failed);
        }
    }
    // These operations rarely succeed in random requests, because they end sessions, free revoked stateids, or need a
    // file with data. Other tests cover these operations.
    let rare = [OP_BIND_CONN_TO_SESSION, OP_DESTROY_CLIENTID, OP_DESTROY_SESSION, OP_FREE_STATEID, OP_SEEK];
    for op in REGISTERED.iter().filter(|op| !rare.contains(op)) {
        let (ok, _) = reached.get(&(*op as u32)).copied().unwrap_or_default();
        assert!(ok > 0, "{op:?} never succeeded: {reached:?}");
    }
}
