//! Tests of the sharing state: when the opens of a file require coherence, and when a client requests a delegation
//! again.

use super::*;

#[test]
fn a_coherent_file_asks_once_in_a_while() {
    let (mut sharing, start) = (SharingState::default(), Instant::now());
    assert!(!sharing.may_ask(start), "no open requires it");
    sharing.opened(true, false);
    assert!(sharing.may_ask(start));
    sharing.asked(start);
    assert!(!sharing.may_ask(start + ASK_AGAIN / 2));
    assert!(sharing.may_ask(start + ASK_AGAIN));
}

#[test]
fn later_opens_take_no_requirement_away() {
    let mut sharing = SharingState::default();
    sharing.opened(true, false);
    sharing.opened(false, true);
    sharing.opened(false, false);
    assert!(sharing.is_coherent() && sharing.is_exclusive());
    sharing.granted();
    sharing.granted();
    sharing.revoked();
    assert_eq!((sharing.grants(), sharing.revocations()), (2, 1));
}
