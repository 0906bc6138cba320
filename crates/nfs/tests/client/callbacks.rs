//! Tests of the backchannel: the client decodes the server's callbacks, and executes each callback once.

use crate::helpers::*;
use bytes::Bytes;
use nfs::client::callback::{Callbacks, DeviceChange, DeviceChangeKind, Event, Incoming};
use nfs::client::session::SessionWants;
use nfs::state::ClientId;
use nfs::state::sessions::CallbackEnd;
use wire::nfs4::compound::OpsWriter;
use wire::nfs4::*;
use xdr::Xdr;

const SESSION: sessionid4 = [5; 16];

fn callbacks() -> Callbacks {
    Callbacks::new(SESSION, &SessionWants::new(1).back.unwrap())
}

fn sequence(number: u32) -> CB_SEQUENCE4args {
    CB_SEQUENCE4args { csa_sessionid: SESSION, csa_sequenceid: number, ..Default::default() }
}

fn recall() -> CB_LAYOUTRECALL4args {
    CB_LAYOUTRECALL4args {
        clora_type: 0x8000_5745,
        clora_iomode: LAYOUTIOMODE4_ANY,
        clora_changed: false,
        clora_recall: layoutrecall4::LAYOUTRECALL4_FILE(layoutrecall_file4 {
            lor_fh: Bytes::from_static(b"handle"),
            lor_offset: 0,
            lor_length: u64::MAX,
            lor_stateid: stateid4 { seqid: 2, other: [1; 12] },
        }),
    }
}

fn call(number: u32, fill: impl FnOnce(&mut OpsWriter)) -> Bytes {
    let mut ops = OpsWriter::new();
    ops.op(OP_CB_SEQUENCE, &sequence(number));
    fill(&mut ops);
    ops.into_cb_args(Bytes::from_static(b"tag"), 1, 0).to_bytes()
}

pub fn recall_call(number: u32) -> Bytes {
    call(number, |ops| {
        ops.op(OP_CB_LAYOUTRECALL, &recall());
    })
}

/// Delivers a callback that the client answers at once, for example a lone CB_SEQUENCE, and returns the reply.
fn reply(callbacks: &mut Callbacks, args: Bytes) -> CB_COMPOUND4res {
    match callbacks.receive(args).unwrap() {
        Incoming::Reply(reply) => CB_COMPOUND4res::from_bytes(&reply.to_bytes()).unwrap(),
        Incoming::Pending(pending) => panic!("{pending:?}"),
    }
}

fn statuses(reply: &CB_COMPOUND4res) -> (nfsstat4, usize) {
    assert_eq!(reply.tag, "tag");
    (reply.status, reply.resarray.len())
}

#[test]
fn a_recall_is_decided_once_and_its_reply_is_replayed() {
    let mut callbacks = callbacks();
    let Incoming::Pending(pending) = callbacks.receive(recall_call(1)).unwrap() else { panic!("decided alone") };
    assert_eq!(pending.events, [Event::LayoutRecall(recall())]);
    let meanwhile = reply(&mut callbacks, recall_call(1));
    assert_eq!(statuses(&meanwhile), (NFS4ERR_DELAY, 1), "the first is being decided");
    let first = callbacks.answer(pending, &[NFS4ERR_NOMATCHING_LAYOUT]).to_bytes();
    let Incoming::Reply(again) = callbacks.receive(recall_call(1)).unwrap() else { panic!("asked twice") };
    assert_eq!(again.to_bytes(), first);
    let whole = CB_COMPOUND4res::from_bytes(&first).unwrap();
    assert_eq!(statuses(&whole), (NFS4ERR_NOMATCHING_LAYOUT, 2));
    let answer = CB_LAYOUTRECALL4res { clorr_status: NFS4ERR_NOMATCHING_LAYOUT };
    assert_eq!(whole.resarray[1], nfs_cb_resop4::OP_CB_LAYOUTRECALL(answer));
    assert_eq!(statuses(&reply(&mut callbacks, recall_call(3))), (NFS4ERR_SEQ_MISORDERED, 1));
    assert!(matches!(callbacks.receive(recall_call(2)), Ok(Incoming::Pending(_))));
}

#[test]
fn another_request_with_the_same_sequence_is_a_false_retry() {
    let mut callbacks = callbacks();
    assert_eq!(statuses(&reply(&mut callbacks, call(1, |_| {}))), (NFS4_OK, 1), "a lone CB_SEQUENCE");
    assert_eq!(statuses(&reply(&mut callbacks, recall_call(1))), (NFS4ERR_SEQ_FALSE_RETRY, 1));
}

#[test]
fn events_are_answered_up_to_the_first_refusal() {
    let any = CB_RECALL_ANY4args { craa_objects_to_keep: 3, craa_type_mask: vec![1] };
    let args = |number| {
        call(number, |ops| {
            ops.op(OP_CB_RECALL_SLOT, &CB_RECALL_SLOT4args { rsa_target_highest_slotid: 2 });
            ops.op(OP_CB_RECALL_ANY, &any).op(OP_CB_LAYOUTRECALL, &recall());
        })
    };
    let mut callbacks = callbacks();
    for (number, answers, expected) in [
        (1, &[NFS4_OK, NFS4_OK, NFS4_OK][..], (NFS4_OK, 4)),
        (2, &[NFS4_OK, NFS4ERR_DELAY, NFS4_OK][..], (NFS4ERR_DELAY, 3)),
        (3, &[][..], (NFS4ERR_SERVERFAULT, 2)),
    ] {
        let Incoming::Pending(pending) = callbacks.receive(args(number)).unwrap() else { panic!("decided alone") };
        let expected_events = [Event::RecallSlot(2), Event::RecallAny(any.clone()), Event::LayoutRecall(recall())];
        assert_eq!(pending.events, expected_events);
        let reply = callbacks.answer(pending, answers).to_bytes();
        assert_eq!(statuses(&CB_COMPOUND4res::from_bytes(&reply).unwrap()), expected);
    }
}

#[test]
fn cb_notify_lock_becomes_a_lock_free_event() {
    let owner = lock_owner4 { clientid: 7, owner: Bytes::from_static(b"owner") };
    let free = CB_NOTIFY_LOCK4args { cnla_fh: Bytes::from_static(b"file"), cnla_lock_owner: owner };
    let mut callbacks = callbacks();
    let args = call(1, |ops| {
        ops.op(OP_CB_NOTIFY_LOCK, &free);
    });
    let Incoming::Pending(pending) = callbacks.receive(args).unwrap() else { panic!("decided alone") };
    assert_eq!(pending.events, [Event::LockFree(free.clone())]);
    let reply = callbacks.answer(pending, &[NFS4_OK]).to_bytes();
    assert_eq!(statuses(&CB_COMPOUND4res::from_bytes(&reply).unwrap()), (NFS4_OK, 2));
}

#[test]
fn cb_notify_is_a_resize_event_and_refused_with_changes() {
    let set = CB_NOTIFY4args { cna_fh: Bytes::from_static(b"file"), ..CB_NOTIFY4args::default() };
    let mut callbacks = callbacks();
    let args = |number, notify: &CB_NOTIFY4args| {
        call(number, |ops| {
            ops.op(OP_CB_NOTIFY, notify);
        })
    };
    let Incoming::Pending(pending) = callbacks.receive(args(1, &set)).unwrap() else { panic!("decided alone") };
    assert_eq!(pending.events, [Event::Resized(set.cna_fh.clone())]);
    assert!(callbacks.has_received(&pending));
    let other = Callbacks::new([8; 16], &SessionWants::new(1).back.unwrap());
    assert!(!other.has_received(&pending), "of another session");
    callbacks.answer(pending, &[NFS4_OK]);
    let changes = CB_NOTIFY4args { cna_changes: vec![notify4::default()], ..set };
    let Incoming::Reply(reply) = callbacks.receive(args(2, &changes)).unwrap() else { panic!("nothing to decide") };
    assert_eq!(statuses(&CB_COMPOUND4res::from_bytes(&reply.to_bytes()).unwrap()), (NFS4ERR_NOTSUPP, 2));
}

#[test]
fn cb_notify_deviceid_becomes_a_device_event() {
    let change = notify_deviceid_change4 { ndc_layouttype: 9, ndc_deviceid: [1; 16], ndc_immediate: true };
    let gone = notify_deviceid_delete4 { ndd_layouttype: 9, ndd_deviceid: [2; 16] };
    let notify = |mask, value: Bytes| notify4 { notify_mask: vec![mask], notify_vals: value };
    let good = vec![notify(2, change.to_bytes()), notify(4, gone.to_bytes())];
    let args = |number, changes: &[notify4]| {
        call(number, |ops| {
            ops.op(OP_CB_NOTIFY_DEVICEID, &CB_NOTIFY_DEVICEID4args { cnda_changes: changes.to_vec() });
        })
    };
    let mut callbacks = callbacks();
    let Incoming::Pending(pending) = callbacks.receive(args(1, &good)).unwrap() else { panic!("decided alone") };
    let expected = vec![
        DeviceChange { kind: 9, device: [1; 16], how: DeviceChangeKind::Changed { immediate: true } },
        DeviceChange { kind: 9, device: [2; 16], how: DeviceChangeKind::Deleted },
    ];
    assert_eq!(pending.events, [Event::Devices(expected)]);
    callbacks.answer(pending, &[NFS4_OK]);
    for bad in [notify(2, gone.to_bytes()), notify(4, Bytes::new()), notify(0, gone.to_bytes())] {
        let number = if bad.notify_mask == [2] {
            2
        } else if bad.notify_mask == [4] {
            3
        } else {
            4
        };
        assert_eq!(statuses(&reply(&mut callbacks, args(number, &[bad]))), (NFS4ERR_BADXDR, 2));
    }
}

#[test]
fn callback_operations_that_cannot_be_executed_are_refused() {
    let mut number = 0;
    let mut send = |callbacks: &mut Callbacks, fill: fn(&mut OpsWriter)| {
        number += 1;
        statuses(&reply(callbacks, call(number, fill)))
    };
    let mut callbacks = callbacks();
    let unsupported: fn(&mut OpsWriter) = |ops| {
        ops.op(OP_CB_GETATTR, &CB_GETATTR4args::default());
    };
    assert_eq!(send(&mut callbacks, unsupported), (NFS4ERR_NOTSUPP, 2));
    let second_sequence: fn(&mut OpsWriter) = |ops| {
        ops.op(OP_CB_SEQUENCE, &sequence(1));
    };
    assert_eq!(send(&mut callbacks, second_sequence), (NFS4ERR_SEQUENCE_POS, 2));
    let cut: fn(&mut OpsWriter) = |ops| {
        ops.void(OP_CB_LAYOUTRECALL);
    };
    assert_eq!(send(&mut callbacks, cut), (NFS4ERR_BADXDR, 2));
    let many: fn(&mut OpsWriter) = |ops| {
        for _ in 0..4 {
            ops.op(OP_CB_RECALL_SLOT, &CB_RECALL_SLOT4args::default());
        }
    };
    assert_eq!(send(&mut callbacks, many), (NFS4ERR_TOO_MANY_OPS, 1));
    let unknown = call(4, |ops| {
        ops.void(OP_CB_ILLEGAL);
    });
    assert_eq!(statuses(&reply(&mut callbacks, unknown)), (NFS4ERR_OP_ILLEGAL, 2));
}

#[test]
fn callbacks_outside_their_session_are_refused() {
    let mut callbacks = callbacks();
    let mut other = OpsWriter::new();
    other.op(OP_CB_SEQUENCE, &CB_SEQUENCE4args { csa_sessionid: [6; 16], ..sequence(1) });
    let other = other.into_cb_args(Bytes::from_static(b"tag"), 1, 0).to_bytes();
    assert_eq!(statuses(&reply(&mut callbacks, other)), (NFS4ERR_BADSESSION, 1));
    let mut bare = OpsWriter::new();
    bare.op(OP_CB_LAYOUTRECALL, &recall());
    let bare = bare.into_cb_args(Bytes::from_static(b"tag"), 1, 0).to_bytes();
    assert_eq!(statuses(&reply(&mut callbacks, bare)), (NFS4ERR_OP_NOT_IN_SESSION, 1));
    for (minor, expected) in [(0, NFS4ERR_MINOR_VERS_MISMATCH), (3, NFS4ERR_MINOR_VERS_MISMATCH), (2, NFS4_OK)] {
        let mut ops = OpsWriter::new();
        ops.op(OP_CB_SEQUENCE, &sequence(1));
        let args = ops.into_cb_args(Bytes::from_static(b"tag"), minor, 0).to_bytes();
        assert_eq!(statuses(&reply(&mut callbacks, args)).0, expected, "minor version {minor}");
    }
    let empty = OpsWriter::new().into_cb_args(Bytes::from_static(b"tag"), 1, 0).to_bytes();
    assert_eq!(statuses(&reply(&mut callbacks, empty)), (NFS4_OK, 0));
    assert!(callbacks.receive(Bytes::from_static(b"abc")).is_err());
}

#[test]
fn a_layout_recall_is_decoded_from_golden_bytes() {
    #[rustfmt::skip]
    let golden: [u8; 148] = [
        0, 0, 0, 0,  0, 0, 0, 1,  0, 0, 0, 0,  0, 0, 0, 2, // tag, minor version, ident, operations
        0, 0, 0, 11, // CB_SEQUENCE
        5, 5, 5, 5,  5, 5, 5, 5,  5, 5, 5, 5,  5, 5, 5, 5, // session
        0, 0, 0, 1,  0, 0, 0, 0,  0, 0, 0, 0, // sequence, slot, highest slot
        0, 0, 0, 0,  0, 0, 0, 1, // cache this, one list of referring calls
        6, 6, 6, 6,  6, 6, 6, 6,  6, 6, 6, 6,  6, 6, 6, 6, // session of the referring call
        0, 0, 0, 1,  0, 0, 0, 9,  0, 0, 0, 3, // one call: sequence 9 on slot 3
        0, 0, 0, 5, // CB_LAYOUTRECALL
        0x80, 0, 0x57, 0x45,  0, 0, 0, 3,  0, 0, 0, 0,  0, 0, 0, 1, // type, ANY, not changed, FILE
        0, 0, 0, 6,  b'h', b'a', b'n', b'd', b'l', b'e', 0, 0, // handle
        0, 0, 0, 0,  0, 0, 0, 0,  255, 255, 255, 255,  255, 255, 255, 255, // offset, length
        0, 0, 0, 2,  1, 1, 1, 1,  1, 1, 1, 1,  1, 1, 1, 1, // stateid
    ];
    let incoming = callbacks().receive(Bytes::copy_from_slice(&golden)).unwrap();
    let Incoming::Pending(pending) = incoming else { panic!("decided alone: {incoming:?}") };
    assert_eq!(pending.events, [Event::LayoutRecall(recall())]);
    let referring = referring_call_list4 {
        rcl_sessionid: [6; 16],
        rcl_referring_calls: vec![referring_call4 { rc_sequenceid: 9, rc_slotid: 3 }],
    };
    assert_eq!(pending.referring, [referring]);
}

#[test]
fn the_server_recovers_its_callback_slot_after_lost_messages() {
    // Tries every combination of lost requests and lost replies for two callbacks in a row. The client must execute
    // each callback at most once.
    for first_arrives in [false, true] {
        for first_answered in [false, true] {
            let (mut state, session) = connect(1);
            let client = ClientId(session.clientid());
            let mut callbacks = Callbacks::new(session.id(), session.back().unwrap());
            let mut seen = 0;
            let send = |state: &mut nfs::state::State, target: u32| {
                let back = state.backchannel(client).unwrap();
                let mut ops = OpsWriter::new();
                ops.op(OP_CB_SEQUENCE, &back.sequence);
                ops.op(OP_CB_RECALL_SLOT, &CB_RECALL_SLOT4args { rsa_target_highest_slotid: target });
                (back, ops.into_cb_args(Bytes::from_static(b"tag"), 1, 0).to_bytes())
            };
            let mut arrive = |callbacks: &mut Callbacks, bytes| match callbacks.receive(bytes).unwrap() {
                Incoming::Reply(reply) => CB_COMPOUND4res::from_bytes(&reply.to_bytes()).unwrap().status,
                Incoming::Pending(pending) => {
                    seen += 1;
                    let reply = callbacks.answer(pending, &[NFS4_OK]).to_bytes();
                    CB_COMPOUND4res::from_bytes(&reply).unwrap().status
                }
            };
            let (back, bytes) = send(&mut state, 1);
            if first_arrives {
                assert_eq!(arrive(&mut callbacks, bytes), NFS4_OK);
            }
            let end = if first_arrives && first_answered { CallbackEnd::Answered } else { CallbackEnd::Lost };
            state.callback_done(back.session, back.slot, end);
            let mut tries = 0;
            loop {
                tries += 1;
                let (back, bytes) = send(&mut state, 2);
                let status = arrive(&mut callbacks, bytes);
                let end = match status {
                    NFS4_OK => CallbackEnd::Answered,
                    NFS4ERR_SEQ_MISORDERED => CallbackEnd::Misordered,
                    other => panic!("{other:?}"),
                };
                state.callback_done(back.session, back.slot, end);
                if status == NFS4_OK {
                    break;
                }
            }
            assert_eq!(tries, if first_arrives { 1 } else { 2 });
            assert_eq!(seen, 1 + u32::from(first_arrives));
        }
    }
}
