//! All NFS operations that take a filehandle or return one, as COMPOUNDs for attacks.

use crate::peer::{CURRENT, lookup, make_dir, putfh, text};
use bytes::Bytes;
use nfs::attrs::{self, Mask};
use wire::nfs4::nfs_argop4 as Op;
use wire::nfs4::*;

/// Returns one COMPOUND for each operation, with the operation as its last one. The operation uses `target` as the
/// current or the saved filehandle. If the operation needs another filehandle, it uses `own`, a directory of the
/// caller.
pub fn operations(target: &Bytes, own: &Bytes) -> Vec<(&'static str, Vec<Op>)> {
    let one = [on_names(), opens(), on_data()].concat();
    let mut out: Vec<_> = one.into_iter().map(|(name, op)| (name, vec![putfh(target), op])).collect();
    for (name, op) in with_two() {
        out.push((name, vec![putfh(target), Op::OP_SAVEFH, putfh(own), op.clone()]));
        out.push((name, vec![putfh(own), Op::OP_SAVEFH, putfh(target), op.clone()]));
        out.push((name, vec![putfh(target), Op::OP_SAVEFH, putfh(own), Op::OP_RESTOREFH, op]));
    }
    out
}

fn size() -> fattr4 {
    fattr4 { attrmask: vec![1 << FATTR4_SIZE], attr_vals: Bytes::from_static(&[0; 8]) }
}

fn on_names() -> Vec<(&'static str, Op)> {
    let attr_request = Mask::of(&[FATTR4_FILEHANDLE, FATTR4_FILEID]).to_bitmap();
    let whole = READDIR4args { dircount: 9000, maxcount: 9000, attr_request, ..READDIR4args::default() };
    let value = SETXATTR4args { sxa_option: SETXATTR4_EITHER, sxa_key: text("user.a"), sxa_value: Bytes::new() };
    vec![
        ("ACCESS", Op::OP_ACCESS(ACCESS4args { access: 63 })),
        ("CREATE", Op::OP_CREATE(make_dir("planted"))),
        ("GETATTR", Op::OP_GETATTR(GETATTR4args { attr_request: attrs::OBJECT.to_bitmap() })),
        ("GETFH", Op::OP_GETFH),
        ("LOOKUP", lookup("data")),
        ("LOOKUPP", Op::OP_LOOKUPP),
        ("VERIFY", Op::OP_VERIFY(VERIFY4args { obj_attributes: size() })),
        ("NVERIFY", Op::OP_NVERIFY(NVERIFY4args { obj_attributes: size() })),
        ("READDIR", Op::OP_READDIR(whole)),
        ("READLINK", Op::OP_READLINK),
        ("REMOVE", Op::OP_REMOVE(REMOVE4args { target: text("data") })),
        ("SECINFO", Op::OP_SECINFO(SECINFO4args { name: text("data") })),
        ("SECINFO_NO_NAME", Op::OP_SECINFO_NO_NAME(SECINFO_STYLE4_PARENT)),
        ("SETATTR", Op::OP_SETATTR(SETATTR4args { stateid: stateid4::default(), obj_attributes: size() })),
        ("GETXATTR", Op::OP_GETXATTR(GETXATTR4args { gxa_name: text("user.a") })),
        ("SETXATTR", Op::OP_SETXATTR(value)),
        ("LISTXATTRS", Op::OP_LISTXATTRS(LISTXATTRS4args { lxa_cookie: 0, lxa_maxcount: 999 })),
        ("REMOVEXATTR", Op::OP_REMOVEXATTR(REMOVEXATTR4args { rxa_name: text("user.a") })),
        ("GET_DIR_DELEGATION", Op::OP_GET_DIR_DELEGATION(GET_DIR_DELEGATION4args::default())),
    ]
}

fn opens() -> Vec<(&'static str, Op)> {
    let open = |claim, openhow| {
        Op::OP_OPEN(OPEN4args {
            seqid: 0,
            share_access: OPEN4_SHARE_ACCESS_BOTH,
            share_deny: OPEN4_SHARE_DENY_NONE,
            owner: state_owner4 { clientid: 0, owner: text("o") },
            openhow,
            claim,
        })
    };
    let there = || openflag4::Default(OPEN4_NOCREATE);
    let create = openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(fattr4::default()));
    vec![
        ("OPEN by handle", open(open_claim4::CLAIM_FH, there())),
        ("OPEN by name", open(open_claim4::CLAIM_NULL(text("data")), there())),
        ("OPEN to create", open(open_claim4::CLAIM_NULL(text("planted")), create)),
        ("OPEN to reclaim", open(open_claim4::CLAIM_PREVIOUS(OPEN_DELEGATE_NONE), there())),
    ]
}

fn on_data() -> Vec<(&'static str, Op)> {
    let special = stateid4::default();
    let layout = LAYOUTGET4args {
        loga_signal_layout_avail: false,
        loga_layout_type: layout::kinds::native::KIND,
        loga_iomode: LAYOUTIOMODE4_RW,
        loga_offset: 0,
        loga_length: u64::MAX,
        loga_minlength: 0,
        loga_stateid: CURRENT,
        loga_maxcount: 4096,
    };
    let owner = lock_owner4 { clientid: 0, owner: text("o") };
    vec![
        ("COMMIT", Op::OP_COMMIT(COMMIT4args::default())),
        ("READ", Op::OP_READ(READ4args { stateid: special, offset: 0, count: 9 })),
        ("READ_PLUS", Op::OP_READ_PLUS(READ_PLUS4args { rpa_stateid: special, rpa_offset: 0, rpa_count: 9 })),
        ("WRITE", Op::OP_WRITE(WRITE4args { stateid: special, offset: 0, stable: FILE_SYNC4, data: text("EVIL") })),
        ("LAYOUTGET", Op::OP_LAYOUTGET(layout)),
        ("LOCKT", Op::OP_LOCKT(LOCKT4args { locktype: READ_LT, offset: 0, length: 1, owner })),
        ("SEEK", Op::OP_SEEK(SEEK4args { sa_stateid: special, sa_offset: 0, sa_what: NFS4_CONTENT_DATA })),
        ("ALLOCATE", Op::OP_ALLOCATE(ALLOCATE4args { aa_stateid: special, aa_offset: 0, aa_length: 9 })),
        ("DEALLOCATE", Op::OP_DEALLOCATE(DEALLOCATE4args { da_stateid: special, da_offset: 0, da_length: 9 })),
        ("IO_ADVISE", Op::OP_IO_ADVISE(IO_ADVISE4args { iaa_stateid: special, ..IO_ADVISE4args::default() })),
    ]
}

fn with_two() -> Vec<(&'static str, Op)> {
    let special = stateid4::default();
    let copy = COPY4args { ca_src_stateid: special, ca_dst_stateid: special, ca_count: 9, ..COPY4args::default() };
    vec![
        ("LINK", Op::OP_LINK(LINK4args { newname: text("planted") })),
        ("RENAME", Op::OP_RENAME(RENAME4args { oldname: text("data"), newname: text("planted") })),
        ("COPY", Op::OP_COPY(copy)),
    ]
}
