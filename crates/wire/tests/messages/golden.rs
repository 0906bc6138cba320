//! Tests of golden messages: each encoded message must decode to the values in its comments, and these values must
//! encode to the bytes of the message.

use crate::frames;
use bytes::Bytes;
use wire::admin::Status;
use wire::native::{ReadReply, WriteArgs, decode_reply};
use wire::nfs4::compound::{ArgsHeader, CbArgsHeader, Ops, OpsWriter};
use wire::nfs4::*;
use wire::rpc::record::{Mark, mark};
use wire::rpc::{Auth, AuthSys, CallHeader, Message, decode_message};
use xdr::{Reader, Writer, Xdr};

fn text(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn stateid(seqid: u32) -> stateid4 {
    stateid4 { seqid, other: std::array::from_fn(|i| 0xc0 + i as u8) }
}

/// Decodes an encoded COMPOUND of one operation, and compares the arguments of the operation with `args`. Encodes the
/// COMPOUND again, and compares the result with the original bytes.
fn alone<T: Xdr + PartialEq + std::fmt::Debug>(frame: &str, minorversion: u32, number: nfs_opnum4, args: T) {
    let mut input = Reader::new(frames::bytes(frame));
    let header = ArgsHeader::decode(&mut input).unwrap();
    assert_eq!((header.minorversion, header.numops), (minorversion, 1));
    let mut ops = Ops::new(header.numops, input);
    assert_eq!(ops.next_number(), Ok(Some(number as u32)));
    assert_eq!(ops.body::<T>().as_ref(), Ok(&args));
    assert_eq!(ops.finish(), Ok(()));
    let mut out = OpsWriter::new();
    out.op(number, &args);
    assert_eq!(out.into_args(header.tag, minorversion).to_bytes(), frames::bytes(frame));
}

#[test]
fn rpc_call() {
    let record = frames::bytes(frames::RPC_CALL);
    let head: [u8; 4] = record[..4].try_into().unwrap();
    assert_eq!(Mark::from_bytes(head), Mark { last: true, len: record.len() - 4 });
    let sys = AuthSys { stamp: 0, machine: text("node7"), uid: 1000, gid: 100, gids: vec![4, 27] };
    let call = CallHeader {
        xid: 0x1234_5678,
        program: NFS4_PROGRAM,
        version: NFS_V4,
        procedure: NFSPROC4_COMPOUND,
        cred: Auth::Sys(sys),
        verf: Auth::None,
    };
    let mut input = Reader::new(record.slice(4..));
    assert_eq!(decode_message(&mut input), Ok(Message::Call(call.clone())));
    assert_eq!(input.finish(), Ok(()));
    let mut out = Writer::new();
    call.encode(&mut out);
    assert_eq!(mark(out.finish()).to_bytes(), record);
}

#[test]
fn exchange_id() {
    let impl_id = nfs_impl_id4 {
        nii_domain: text("weir.example"),
        nii_name: text("weir"),
        nii_date: nfstime4 { seconds: 1_700_000_000, nseconds: 999_999_999 },
    };
    let args = EXCHANGE_ID4args {
        eia_clientowner: client_owner4 { co_verifier: [1, 2, 3, 4, 5, 6, 7, 8], co_ownerid: text("weir client") },
        eia_flags: EXCHGID4_FLAG_USE_NON_PNFS | EXCHGID4_FLAG_BIND_PRINC_STATEID | EXCHGID4_FLAG_SUPP_MOVED_REFER,
        eia_state_protect: state_protect4_a::SP4_NONE,
        eia_client_impl_id: vec![impl_id],
    };
    alone(frames::EXCHANGE_ID, 1, OP_EXCHANGE_ID, args);
}

#[test]
fn create_session() {
    let channel = |size, cached, operations, requests, ird| channel_attrs4 {
        ca_headerpadsize: 0,
        ca_maxrequestsize: size,
        ca_maxresponsesize: size,
        ca_maxresponsesize_cached: cached,
        ca_maxoperations: operations,
        ca_maxrequests: requests,
        ca_rdma_ird: ird,
    };
    let sys = authsys_parms { stamp: 0, machinename: text("n"), uid: 0, gid: 0, gids: vec![] };
    let args = CREATE_SESSION4args {
        csa_clientid: 0x1122_3344_5566_7788,
        csa_sequence: 1,
        csa_flags: CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
        csa_fore_chan_attrs: channel(0x11_0000, 8192, 64, 64, vec![]),
        csa_back_chan_attrs: channel(4096, 0, 2, 16, vec![7]),
        csa_cb_program: NFS4_CALLBACK,
        csa_sec_parms: vec![callback_sec_parms4::AUTH_SYS(sys), callback_sec_parms4::AUTH_NONE],
    };
    alone(frames::CREATE_SESSION, 1, OP_CREATE_SESSION, args);
}

#[test]
fn sequence_putfh_write() {
    let frame = frames::bytes(frames::WRITE);
    let mut input = Reader::new(frame.clone());
    let header = ArgsHeader::decode(&mut input).unwrap();
    let mut ops = Ops::new(header.numops, input);
    assert_eq!(ops.next_number(), Ok(Some(OP_SEQUENCE as u32)));
    let sequence = SEQUENCE4args {
        sa_sessionid: std::array::from_fn(|i| i as u8),
        sa_sequenceid: 9,
        sa_slotid: 3,
        sa_highest_slotid: 15,
        sa_cachethis: true,
    };
    assert_eq!(ops.body(), Ok(sequence));
    assert_eq!(ops.next_number(), Ok(Some(OP_PUTFH as u32)));
    let putfh = PUTFH4args { object: (0xa0..0xa9).collect() };
    assert_eq!(ops.body().as_ref(), Ok(&putfh));
    assert_eq!(ops.next_number(), Ok(Some(OP_WRITE as u32)));
    let write = ops.body::<WRITE4args>().unwrap();
    let same = WRITE4args { stateid: stateid(1), offset: 1 << 32, stable: FILE_SYNC4, data: text("hello\n") };
    assert_eq!(write, same);
    assert!(frame.as_ptr_range().contains(&write.data.as_ptr()), "the payload was copied");
    assert_eq!(ops.finish(), Ok(()));
    let mut out = OpsWriter::new();
    out.op(OP_SEQUENCE, &sequence).op(OP_PUTFH, &putfh).op(OP_WRITE, &write);
    assert_eq!(out.into_args(header.tag, 2).to_bytes(), frame);
}

#[test]
fn readdir_reply() {
    let entry = |cookie, name, attrs| entry4 { cookie, name: text(name), attrs };
    let type_only = fattr4 { attrmask: vec![1 << FATTR4_TYPE], attr_vals: Bytes::from_static(&[0, 0, 0, 1]) };
    let entries = vec![entry(3, "a", type_only), entry(4, "bb", fattr4::default())];
    let resok = READDIR4resok { cookieverf: [0, 0, 0, 0, 0, 0, 0, 1], reply: dirlist4 { entries, eof: true } };
    let reply = COMPOUND4res {
        status: NFS4_OK,
        tag: Bytes::new(),
        resarray: vec![
            nfs_resop4::OP_PUTFH(PUTFH4res { status: NFS4_OK }),
            nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(resok)),
        ],
    };
    assert_eq!(COMPOUND4res::from_bytes(&frames::bytes(frames::READDIR_REPLY)).as_ref(), Ok(&reply));
    assert_eq!(reply.to_bytes(), frames::bytes(frames::READDIR_REPLY));
}

#[test]
fn layoutget_of_a_private_type() {
    let args = LAYOUTGET4args {
        loga_signal_layout_avail: false,
        loga_layout_type: 0x8000_5745,
        loga_iomode: LAYOUTIOMODE4_RW,
        loga_offset: 0,
        loga_length: NFS4_UINT64_MAX,
        loga_minlength: 4096,
        loga_stateid: stateid(1),
        loga_maxcount: 16384,
    };
    alone(frames::LAYOUTGET, 1, OP_LAYOUTGET, args);
}

#[test]
fn setxattr() {
    let args = SETXATTR4args { sxa_option: SETXATTR4_CREATE, sxa_key: text("mime"), sxa_value: text("txt") };
    alone(frames::XATTR, 2, OP_SETXATTR, args);
}

#[test]
fn layout_recall() {
    let frame = frames::bytes(frames::CB_RECALL);
    let mut input = Reader::new(frame.clone());
    let header = CbArgsHeader::decode(&mut input).unwrap();
    assert_eq!((header.minorversion, header.numops), (1, 2));
    let mut ops = Ops::new(header.numops, input);
    assert_eq!(ops.next_number(), Ok(Some(OP_CB_SEQUENCE as u32)));
    let sequence = CB_SEQUENCE4args {
        csa_sessionid: std::array::from_fn(|i| i as u8),
        csa_sequenceid: 1,
        csa_slotid: 0,
        csa_highest_slotid: 0,
        csa_cachethis: false,
        csa_referring_call_lists: vec![],
    };
    assert_eq!(ops.body().as_ref(), Ok(&sequence));
    assert_eq!(ops.next_number(), Ok(Some(OP_CB_LAYOUTRECALL as u32)));
    let file = layoutrecall_file4 {
        lor_fh: (0xa0..0xa4).collect(),
        lor_offset: 0,
        lor_length: NFS4_UINT64_MAX,
        lor_stateid: stateid(2),
    };
    let recall = CB_LAYOUTRECALL4args {
        clora_type: 0x8000_5745,
        clora_iomode: LAYOUTIOMODE4_ANY,
        clora_changed: true,
        clora_recall: layoutrecall4::LAYOUTRECALL4_FILE(file),
    };
    assert_eq!(ops.body().as_ref(), Ok(&recall));
    assert_eq!(ops.finish(), Ok(()));
    let mut out = OpsWriter::new();
    out.op(OP_CB_SEQUENCE, &sequence).op(OP_CB_LAYOUTRECALL, &recall);
    assert_eq!(out.into_cb_args(header.tag, 1, 0).to_bytes(), frame);
}

/// The encoder must not copy the payload of a WRITE, even the largest one.
#[test]
fn payloads_are_encoded_without_a_copy() {
    let data = Bytes::from(vec![7; types::limits::PAYLOAD_MAX]);
    let mut out = OpsWriter::new();
    out.op(OP_WRITE, &WRITE4args { stateid: stateid(1), offset: 0, stable: UNSTABLE4, data: data.clone() });
    let message = out.into_args(Bytes::new(), 1);
    assert!(message.parts().iter().any(|part| part.as_ptr() == data.as_ptr()), "the payload was copied");
    assert!(message.len() <= types::limits::RECORD_MAX);
}

/// This test only checks that these encoded messages can be decoded. Unit tests of this crate compare the encoding of
/// all messages of the native data program with golden bytes.
#[test]
fn frames_of_the_native_and_admin_programs_decode() {
    assert!(WriteArgs::from_bytes(&frames::bytes(frames::NATIVE_WRITE)).is_ok());
    let mut input = Reader::new(frames::bytes(frames::NATIVE_READ_REPLY));
    assert!(matches!(decode_reply::<ReadReply>(&mut input), Ok(Ok(_))));
    assert!(Status::from_bytes(&frames::bytes(frames::STATUS)).is_ok());
}
