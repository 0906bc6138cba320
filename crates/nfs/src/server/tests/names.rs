//! Tests of names: LOOKUP, CREATE, RENAME, REMOVE, LINK and READDIR.

use super::*;
use crate::testing::bench::Bench;
use std::time::Duration;
use types::Renaming;

fn create(name: &str, objtype: createtype4) -> Arg {
    Arg::OP_CREATE(CREATE4args { objtype, objname: text(name), createattrs: mode(0o755) })
}

fn mkdir(name: &str) -> Arg {
    create(name, createtype4::NF4DIR)
}

fn rename(from: &str, to: &str) -> Vec<Arg> {
    let rename = Arg::OP_RENAME(RENAME4args { oldname: text(from), newname: text(to) });
    vec![Arg::OP_PUTROOTFH, Arg::OP_SAVEFH, rename]
}

#[test]
fn every_kind_of_object_is_created_and_found() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let device = specdata4 { specdata1: 8, specdata2: 1 };
    let kinds = [
        ("dir", createtype4::NF4DIR, NF4DIR),
        ("link", createtype4::NF4LNK(text("target")), NF4LNK),
        ("block", createtype4::NF4BLK(device), NF4BLK),
        ("char", createtype4::NF4CHR(device), NF4CHR),
        ("socket", createtype4::NF4SOCK, NF4SOCK),
        ("fifo", createtype4::NF4FIFO, NF4FIFO),
    ];
    for (name, kind, number) in kinds {
        let results = peer.ok(vec![Arg::OP_PUTROOTFH, create(name, kind.clone()), Arg::OP_GETFH]);
        let made = handle(&results[2]);
        match &results[1] {
            Res::OP_CREATE(CREATE4res::NFS4_OK(ok)) => {
                assert!(ok.cinfo.atomic && ok.cinfo.before < ok.cinfo.after);
                assert_eq!(ok.attrset, mode(0).attrmask);
            }
            other => panic!("{other:?}"),
        }
        let getattr = Arg::OP_GETATTR(GETATTR4args { attr_request: vec![2] });
        let results = peer.ok(vec![Arg::OP_PUTROOTFH, lookup(name), Arg::OP_GETFH, getattr]);
        assert_eq!(handle(&results[2]), made);
        match &results[3] {
            Res::OP_GETATTR(GETATTR4res::NFS4_OK(ok)) => {
                assert_eq!(ok.obj_attributes.attr_vals[..], (number as u32).to_be_bytes());
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, create(name, kind)]), NFS4ERR_EXIST);
    }
    let regular = create("file", createtype4::Default(NF4REG));
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, regular]), NFS4ERR_BADTYPE);
    let empty = create("empty", createtype4::NF4LNK(Bytes::new()));
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, empty]), NFS4ERR_INVAL);
    let results = peer.ok(vec![Arg::OP_PUTROOTFH, lookup("link"), Arg::OP_READLINK]);
    assert_eq!(results[2], Res::OP_READLINK(READLINK4res::NFS4_OK(READLINK4resok { link: text("target") })));
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, Arg::OP_READLINK]), NFS4ERR_WRONG_TYPE);
}

#[test]
fn invalid_lookups_are_refused() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let (_, regular) = file(&peer, "a");
    peer.ok(vec![Arg::OP_PUTROOTFH, create("link", createtype4::NF4LNK(text("x")))]);
    let long = "x".repeat(256);
    let cases = [
        (lookup("absent"), NFS4ERR_NOENT),
        (lookup(""), NFS4ERR_INVAL),
        (lookup(".."), NFS4ERR_BADNAME),
        (lookup("a/b"), NFS4ERR_BADNAME),
        (lookup(&long), NFS4ERR_NAMETOOLONG),
        (Arg::OP_LOOKUPP, NFS4ERR_NOENT),
        (Arg::OP_SECINFO(SECINFO4args { name: text("absent") }), NFS4ERR_NOENT),
        (putfh(&text("garbage")), NFS4ERR_BADHANDLE),
    ];
    for (op, status) in cases {
        assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, op]), status);
    }
    assert_eq!(peer.fails(vec![putfh(&regular), lookup("x")]), NFS4ERR_NOTDIR);
    assert_eq!(peer.fails(vec![putfh(&regular), Arg::OP_LOOKUPP]), NFS4ERR_NOTDIR);
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, lookup("link"), lookup("x")]), NFS4ERR_SYMLINK);
    for op in [lookup("a"), Arg::OP_GETFH, Arg::OP_SAVEFH, Arg::OP_RESTOREFH] {
        assert_eq!(peer.fails(vec![op]), NFS4ERR_NOFILEHANDLE);
    }
    // SECINFO clears the current filehandle.
    let secinfo = Arg::OP_SECINFO(SECINFO4args { name: text("a") });
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, secinfo, Arg::OP_GETFH]), NFS4ERR_NOFILEHANDLE);
}

#[test]
fn parents_are_found_and_filehandles_saved_and_restored() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let results =
        peer.ok(vec![Arg::OP_PUTROOTFH, Arg::OP_SAVEFH, mkdir("dir"), mkdir("sub"), Arg::OP_LOOKUPP, Arg::OP_GETFH]);
    let dir = handle(&results[5]);
    let ops = vec![putfh(&dir), Arg::OP_SAVEFH, Arg::OP_PUTPUBFH, Arg::OP_RESTOREFH, Arg::OP_GETFH];
    assert_eq!(handle(&peer.ok(ops)[4]), dir);
    let style = Arg::OP_SECINFO_NO_NAME(SECINFO_STYLE4_PARENT);
    peer.ok(vec![putfh(&dir), style.clone()]);
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, style]), NFS4ERR_NOENT);
}

#[test]
fn rename_frees_the_replaced_file_after_its_last_close() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let (stateid, replaced) = file(&peer, "b");
    let (other, moved) = file(&peer, "a");
    peer.ok(vec![Arg::OP_PUTROOTFH, mkdir("dir"), mkdir("sub")]);
    assert_eq!(peer.fails(rename("absent", "x")), NFS4ERR_NOENT);
    assert_eq!(peer.fails(rename("dir", "a")), NFS4ERR_EXIST);
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, rename("a", "b").pop().unwrap()]), NFS4ERR_NOFILEHANDLE);
    peer.ok(rename("a", "b"));
    assert!(bench.server.fs().calls().reaped.is_empty(), "it is still open");
    peer.ok(write(&replaced, stateid, 0, b"bytes of a file without a name"));
    peer.ok(close(&replaced, stateid));
    bench.pass(Duration::from_secs(2));
    assert_eq!(bench.server.fs().calls().reaped.len(), 1);
    peer.ok(close(&moved, other));
    let results = peer.ok(vec![Arg::OP_PUTROOTFH, lookup("b"), Arg::OP_GETFH]);
    assert_eq!(handle(&results[2]), moved);
    assert_eq!(peer.fails(remove("dir")), NFS4ERR_NOTEMPTY);
    assert_eq!(peer.fails(remove("a")), NFS4ERR_NOENT);
    let link = Arg::OP_LINK(LINK4args { newname: text("c") });
    peer.ok(vec![putfh(&moved), Arg::OP_SAVEFH, Arg::OP_PUTROOTFH, link.clone()]);
    assert_eq!(peer.fails(vec![putfh(&moved), Arg::OP_SAVEFH, Arg::OP_PUTROOTFH, link]), NFS4ERR_EXIST);
    peer.ok(remove("b"));
    assert_eq!(bench.server.fs().calls().reaped.len(), 1, "one name is left");
    peer.ok(remove("c"));
    assert_eq!(bench.server.fs().calls().reaped.len(), 2);
}

#[test]
fn weir_clients_can_briefly_open_a_replaced_file_by_handle() {
    let bench = Bench::default();
    let peer = Peer::meet_own(&bench, 1);
    let kernel = Peer::meet(&bench, 2);
    let [(_, first), (_, second)] = ["a", "b"].map(|name| {
        let (stateid, handle) = file(&peer, name);
        peer.ok(close(&handle, stateid));
        (stateid, handle)
    });
    let (third, handle) = file(&peer, "c");
    peer.ok(close(&handle, third));
    peer.ok(rename("b", "a"));
    peer.ok(rename("c", "a"));
    let access = OPEN4_SHARE_ACCESS_READ | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
    // The kernel client may open a filehandle from an old lookup. The server returns STALE for a replaced file, so that
    // the kernel client repeats the lookup.
    assert_eq!(kernel.fails(by_handle(&second, access)), NFS4ERR_STALE);
    assert_eq!(kernel.fails(vec![putfh(&first)]), NFS4ERR_STALE);
    // Weir's client looked up the name just before the rename, and still reads the file that had the name before the
    // rename.
    for looked_up in [&first, &second] {
        let opened = opened(&peer.ok(by_handle(looked_up, access))[1]);
        peer.ok(close(looked_up, opened.stateid));
    }
    let held = opened(&peer.ok(by_handle(&second, access))[1]).stateid;
    assert!(bench.server.fs().calls().reaped.is_empty());
    bench.pass(Duration::from_secs(2));
    assert_eq!(bench.server.fs().calls().reaped.len(), 1, "the other one is open");
    assert_eq!(peer.fails(by_handle(&first, access)), NFS4ERR_STALE);
    peer.ok(close(&second, held));
    assert_eq!(bench.server.fs().calls().reaped.len(), 2);
}

/// Returns a RENAME with renameat2(2) flags in a preceding VERIFY, as Weir's client sends it.
fn renaming(how: Renaming, from: &str, to: &str) -> Vec<Arg> {
    let verify = Arg::OP_VERIFY(VERIFY4args { obj_attributes: crate::attrs::encode_renaming(how) });
    let mut ops = rename(from, to);
    ops.insert(2, verify);
    ops
}

#[test]
fn rename_supports_no_replace_and_exchange() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let (_, one) = file(&peer, "a");
    let (_, other) = file(&peer, "b");
    peer.ok(vec![Arg::OP_PUTROOTFH, mkdir("dir"), mkdir("sub")]);
    let found = |name| handle(&peer.ok(vec![Arg::OP_PUTROOTFH, lookup(name), Arg::OP_GETFH])[2]);
    assert_eq!(peer.fails(renaming(Renaming::NoReplace, "a", "b")), NFS4ERR_EXIST);
    assert_eq!(peer.fails(renaming(Renaming::Exchange, "a", "absent")), NFS4ERR_NOENT);
    peer.ok(renaming(Renaming::Exchange, "a", "b"));
    assert_eq!((found("a"), found("b")), (other.clone(), one.clone()));
    peer.ok(renaming(Renaming::Exchange, "a", "dir"));
    assert_eq!(found("dir"), other);
    peer.ok(vec![Arg::OP_PUTROOTFH, lookup("a"), lookup("sub")]);
    peer.ok(renaming(Renaming::NoReplace, "b", "c"));
    assert_eq!(found("c"), one);

    // The renameat2(2) flags apply only to the next RENAME, not to later RENAMEs in the same COMPOUND.
    let mut ops = renaming(Renaming::NoReplace, "c", "d");
    ops.extend(rename("d", "dir"));
    peer.ok(ops);
    assert_eq!(found("dir"), one);

    // The server refuses renameat2(2) flags in NVERIFY, in a VERIFY with other attributes, and with unknown flags.
    let sent = crate::attrs::encode_renaming(Renaming::Exchange);
    let nverify = Arg::OP_NVERIFY(NVERIFY4args { obj_attributes: sent.clone() });
    let verify = |attrmask: &[u32], attr_vals: &'static [u8]| {
        let obj_attributes = fattr4 { attrmask: attrmask.to_vec(), attr_vals: Bytes::from_static(attr_vals) };
        Arg::OP_VERIFY(VERIFY4args { obj_attributes })
    };
    let mask = sent.attrmask;
    let with_type: Vec<u32> = mask.iter().enumerate().map(|(n, word)| word | if n == 0 { 2 } else { 0 }).collect();
    let cases = [
        (nverify, NFS4ERR_ATTRNOTSUPP),
        (verify(&with_type, &[0, 0, 0, 2, 0, 0, 0, 1]), NFS4ERR_ATTRNOTSUPP),
        (verify(&mask, &[0, 0, 0, 3]), NFS4ERR_INVAL),
        (verify(&mask, &[0, 0, 1]), NFS4ERR_BADXDR),
        (verify(&mask, &[0, 0, 0, 1, 0, 0, 0, 0]), NFS4ERR_BADXDR),
    ];
    for (op, status) in cases {
        assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, op]), status);
    }
}

fn readdir(cookie: u64, maxcount: u32, dircount: u32, attr_request: bitmap4) -> Vec<Arg> {
    let args = READDIR4args { cookie, cookieverf: [0; 8], dircount, maxcount, attr_request };
    vec![Arg::OP_PUTROOTFH, Arg::OP_READDIR(args)]
}

fn listed(results: &[Res]) -> READDIR4resok {
    match &results[1] {
        Res::OP_READDIR(READDIR4res::NFS4_OK(ok)) => ok.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn readdir_returns_all_names_in_pages_within_the_limits() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    let empty = listed(&peer.ok(readdir(0, 16, 0, vec![])));
    assert!(empty.reply.entries.is_empty() && empty.reply.eof);
    for i in 0..100 {
        peer.ok(vec![Arg::OP_PUTROOTFH, mkdir(&format!("entry {i:03}"))]);
    }
    let mask = crate::attrs::Mask::of(&[1, 11, 19, 20, 55]).to_bitmap();
    for (maxcount, dircount) in [(300, 0), (1000, 0), (4000, 100), (4000, 1)] {
        let mut cookie = 0;
        let mut names = Vec::new();
        loop {
            let results = peer.ok(readdir(cookie, maxcount, dircount, mask.clone()));
            let page = listed(&results);
            let bytes = xdr::Xdr::to_bytes(&page).len();
            assert!(bytes <= maxcount as usize, "{bytes} bytes are more than {maxcount}");
            for entry in &page.reply.entries {
                assert_eq!(entry.attrs.attrmask, mask);
                assert!(entry.cookie > 2);
                names.push(entry.name.clone());
            }
            if page.reply.eof {
                break;
            }
            cookie = page.reply.entries.last().expect("a page without end has entries").cookie;
        }
        assert_eq!(names.len(), 100);
        names.dedup();
        assert_eq!(names.len(), 100);
    }
}

#[test]
fn invalid_readdir_requests_are_refused() {
    let bench = Bench::default();
    let peer = Peer::meet(&bench, 1);
    assert_eq!(peer.fails(readdir(0, 15, 0, vec![])), NFS4ERR_TOOSMALL);
    peer.ok(vec![Arg::OP_PUTROOTFH, mkdir("entry")]);
    assert_eq!(peer.fails(readdir(0, 40, 0, vec![])), NFS4ERR_TOOSMALL);
    for cookie in [1, 2] {
        assert_eq!(peer.fails(readdir(cookie, 4096, 0, vec![])), NFS4ERR_BAD_COOKIE);
    }
    let write_only = crate::attrs::WRITE_ONLY.to_bitmap();
    assert_eq!(peer.fails(readdir(0, 4096, 0, write_only)), NFS4ERR_INVAL);
    let args = READDIR4args { cookie: 9, cookieverf: [1; 8], dircount: 0, maxcount: 4096, attr_request: vec![] };
    assert_eq!(peer.fails(vec![Arg::OP_PUTROOTFH, Arg::OP_READDIR(args)]), NFS4ERR_NOT_SAME);
    let (_, regular) = file(&peer, "a");
    let mut ops = readdir(0, 4096, 0, vec![]);
    ops[0] = putfh(&regular);
    assert_eq!(peer.fails(ops), NFS4ERR_NOTDIR);
}
