//! Tests of the NFS server with scripted clients. Requests and replies pass through the real encoder and decoder.

mod attributes;
mod delegations;
mod extras;
mod io;
mod layouts;
mod locks;
mod mount;
mod names;
mod names_delegated;
mod opens;
mod random;
mod sessions;

use crate::attrs;
use crate::testing::bench::{Bench, Peer};
use crate::testing::memory::LAYOUT_KIND;
use bytes::Bytes;
use types::SetAttrs;
use wire::nfs4::{nfs_argop4 as Arg, nfs_resop4 as Res, *};

const CURRENT: stateid4 = crate::state::stateids::CURRENT;
const ANONYMOUS: stateid4 = crate::state::stateids::ANONYMOUS;

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn lookup(name: &str) -> Arg {
    Arg::OP_LOOKUP(LOOKUP4args { objname: text(name) })
}

fn putfh(handle: &Bytes) -> Arg {
    Arg::OP_PUTFH(PUTFH4args { object: handle.clone() })
}

fn mode(mode: u32) -> fattr4 {
    attrs::encode_set(&SetAttrs { mode: Some(mode), ..SetAttrs::default() })
}

fn open(name: &str, share_access: u32, openhow: openflag4) -> OPEN4args {
    OPEN4args {
        seqid: 0,
        share_access,
        share_deny: OPEN4_SHARE_DENY_NONE,
        owner: state_owner4 { clientid: 0, owner: text("owner") },
        openhow,
        claim: open_claim4::CLAIM_NULL(text(name)),
    }
}

fn by_handle(handle: &Bytes, share_access: u32) -> Vec<Arg> {
    let args = OPEN4args { claim: open_claim4::CLAIM_FH, ..open("", share_access, PLAIN) };
    vec![putfh(handle), Arg::OP_OPEN(args)]
}

const PLAIN: openflag4 = openflag4::Default(OPEN4_NOCREATE);

fn unchecked(bits: u32) -> openflag4 {
    openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(mode(bits)))
}

fn opened(result: &Res) -> OPEN4resok {
    match result {
        Res::OP_OPEN(OPEN4res::NFS4_OK(ok)) => ok.clone(),
        other => panic!("not an open: {other:?}"),
    }
}

fn handle(result: &Res) -> Bytes {
    match result {
        Res::OP_GETFH(GETFH4res::NFS4_OK(ok)) => ok.object.clone(),
        other => panic!("not a filehandle: {other:?}"),
    }
}

/// Creates a file in the root directory and opens it for reading and writing, without a delegation. Returns the stateid
/// of the open and the filehandle.
fn file(peer: &Peer, name: &str) -> (stateid4, Bytes) {
    let access = OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
    let open = Arg::OP_OPEN(open(name, access, unchecked(0o644)));
    let results = peer.ok(vec![Arg::OP_PUTROOTFH, open, Arg::OP_GETFH]);
    (opened(&results[1]).stateid, handle(&results[2]))
}

fn close(handle: &Bytes, open_stateid: stateid4) -> Vec<Arg> {
    vec![putfh(handle), Arg::OP_CLOSE(CLOSE4args { seqid: 0, open_stateid })]
}

fn remove(name: &str) -> Vec<Arg> {
    vec![Arg::OP_PUTROOTFH, Arg::OP_REMOVE(REMOVE4args { target: text(name) })]
}

fn write(handle: &Bytes, stateid: stateid4, offset: u64, data: &[u8]) -> Vec<Arg> {
    let data = Bytes::copy_from_slice(data);
    vec![putfh(handle), Arg::OP_WRITE(WRITE4args { stateid, offset, stable: UNSTABLE4, data })]
}

fn read(handle: &Bytes, stateid: stateid4, offset: u64, count: u32) -> Vec<Arg> {
    vec![putfh(handle), Arg::OP_READ(READ4args { stateid, offset, count })]
}

fn setattr(handle: &Bytes, stateid: stateid4, set: SetAttrs) -> Vec<Arg> {
    vec![putfh(handle), Arg::OP_SETATTR(SETATTR4args { stateid, obj_attributes: attrs::encode_set(&set) })]
}

fn size(size: u64) -> SetAttrs {
    SetAttrs { size: Some(size), ..SetAttrs::default() }
}

fn layoutget(stateid: stateid4, iomode: layoutiomode4) -> LAYOUTGET4args {
    LAYOUTGET4args {
        loga_signal_layout_avail: false,
        loga_layout_type: LAYOUT_KIND,
        loga_iomode: iomode,
        loga_offset: 0,
        loga_length: u64::MAX,
        loga_minlength: 4096,
        loga_stateid: stateid,
        loga_maxcount: 4096,
    }
}

fn layout(result: &Res) -> LAYOUTGET4resok {
    match result {
        Res::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(ok)) => ok.clone(),
        other => panic!("not a layout: {other:?}"),
    }
}

fn layoutreturn(stateid: stateid4) -> Arg {
    Arg::OP_LAYOUTRETURN(LAYOUTRETURN4args {
        lora_reclaim: false,
        lora_layout_type: LAYOUT_KIND,
        lora_iomode: LAYOUTIOMODE4_ANY,
        lora_layoutreturn: layoutreturn4::LAYOUTRETURN4_FILE(layoutreturn_file4 {
            lrf_offset: 0,
            lrf_length: u64::MAX,
            lrf_stateid: stateid,
            lrf_body: text("body"),
        }),
    })
}

/// Removes and returns the CB_RECALLs that the server has sent. Panics if the server sent another callback.
fn recalls(bench: &Bench) -> Vec<CB_RECALL4args> {
    let calls = bench.server.callbacks().taken();
    let recall = |call: CB_COMPOUND4args| match call.argarray.into_iter().nth(1) {
        Some(nfs_cb_argop4::OP_CB_RECALL(recall)) => recall,
        other => panic!("not a recall: {other:?}"),
    };
    calls.into_iter().map(|(_, call)| recall(call)).collect()
}
