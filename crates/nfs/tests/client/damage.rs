//! Test that damaged callbacks and replies never make the client code panic. The test passes the damaged data to the
//! function of the fuzz target.

use super::callbacks::recall_call;
use super::helpers::reply;
use wire::nfs4::*;

#[path = "../../../../fuzz/fuzz_targets/client_half.rs"]
mod fuzzed;
#[path = "../../../../fuzz/mutate.rs"]
mod mutate;

#[test]
fn damaged_callbacks_and_replies_do_not_panic() {
    let result = SEQUENCE4resok { sr_sessionid: fuzzed::SESSION, sr_sequenceid: 1, ..Default::default() };
    for bytes in [recall_call(1), reply(result, 1, 40)] {
        fuzzed::run(&bytes);
        for seed in 0..5000 {
            fuzzed::run(&mutate::mutate(&bytes, seed));
        }
    }
}
