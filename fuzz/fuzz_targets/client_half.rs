//! Fuzz target for messages from a server to a client: callbacks, and replies to requests of a session.
#![cfg_attr(fuzzing, no_main)]

use bytes::Bytes;
use nfs::client::callback::{Callbacks, Incoming};
use nfs::client::session::{Identity, Session, SessionWants};
use std::time::Duration;
use types::Timestamp;
use wire::nfs4::{CB_COMPOUND4res, CREATE_SESSION4resok, NFS4_OK};
use xdr::Xdr;

/// The session id that the client accepts in callbacks and replies.
pub const SESSION: [u8; 16] = [5; 16];

/// Passes `data` to the client as a callback and as a reply.
pub fn run(data: &[u8]) {
    let data = Bytes::copy_from_slice(data);
    callback(&data);
    reply(data);
}

/// The client answers a callback, and gives the same answer when the callback arrives again.
fn callback(data: &Bytes) {
    let wants = SessionWants::new(4);
    let Some(back) = &wants.back else { return };
    let mut callbacks = Callbacks::new(SESSION, back);
    let first = match callbacks.receive(data.clone()) {
        Err(_) => return,
        Ok(Incoming::Reply(reply)) => reply,
        Ok(Incoming::Pending(pending)) => {
            let statuses = vec![NFS4_OK; pending.events.len()];
            callbacks.answer(pending, &statuses)
        }
    };
    let first = first.to_bytes();
    assert!(CB_COMPOUND4res::from_bytes(&first).is_ok());
    match callbacks.receive(data.clone()) {
        Ok(Incoming::Reply(again)) => assert_eq!(again.to_bytes(), first),
        other => panic!("asked again: {other:?}"),
    }
}

/// Whatever bytes a reply has, the session stays consistent: the client frees the slot of the request, or retires the
/// slot.
fn reply(data: Bytes) {
    let identity = Identity {
        clientid: 1,
        sequence: 1,
        confirmed: false,
        roles: 0,
        major: Bytes::new(),
        minor: 0,
        scope: Bytes::new(),
    };
    let wants = SessionWants::new(2);
    let granted = CREATE_SESSION4resok {
        csr_sessionid: SESSION,
        csr_sequence: 1,
        csr_flags: 0,
        csr_fore_chan_attrs: wants.fore.clone(),
        csr_back_chan_attrs: wants.fore.clone(),
    };
    let now = Timestamp::default();
    let Ok(mut session) = Session::new(&identity, &wants, &granted, now, Duration::from_secs(90)) else { return };
    let Some(ticket) = session.acquire() else { return };
    let outcome = session.replied(ticket, data, now);
    session.give_up(ticket, true);
    assert!(session.slots().used() == 0, "{outcome:?}");
    assert!(session.slots().usable() <= 2);
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
