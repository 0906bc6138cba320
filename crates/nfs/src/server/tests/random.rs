//! Random requests never break the server.

use crate::trial::play;
use proptest::prelude::*;

proptest! {
    #[test]
    fn random_requests_leave_the_tables_in_order(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        play(&bytes);
    }
}
