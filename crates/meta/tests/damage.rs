//! The fuzz target of the store's records, run over damaged records and over noise: nothing may panic.

use bytes::Bytes;
use meta::schema::{
    Body, CookieKey, Core, Delta, Dentry, FormatRecord, Record, SizeDelta, Tail, TailDelta, XattrTally,
};
use meta::{Doomed, Layout};
use proptest::prelude::*;
use types::{FileId, FileKind, Fsid, Generation, Timestamp};

#[path = "../../../fuzz/fuzz_targets/meta_records.rs"]
mod fuzzed;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;

const NOW: Timestamp = Timestamp { secs: 1, nanos: 2 };

/// Good input of the target: the length of the first record, then one record or two.
fn input(first: &Bytes, second: &[u8]) -> Vec<u8> {
    [&[first.len() as u8][..], first, second].concat()
}

fn good() -> Vec<Vec<u8>> {
    let layout = Layout { kind: 9, body: Bytes::from_static(b"body") };
    let body = Body::Regular { generation: Generation(4), layout: Some(layout.clone()), verifier: Some([5; 8]) };
    let core =
        Core { mode: 0o644, uid: 1, gid: 2, names: 3, btime: NOW, xattrs: XattrTally::default(), body }.to_value();
    let symlink = Body::Symlink { target: Bytes::from_static(b"../elsewhere") };
    let link = Core { mode: 0o777, uid: 1, gid: 2, names: 1, btime: NOW, xattrs: XattrTally::default(), body: symlink };
    let tail = Tail::new(NOW, 4096).to_value();
    let delta = TailDelta { size: SizeDelta::Set(7, NOW), subdirs: 1, ctime: Some(NOW), ..TailDelta::default() };
    let dentry = Dentry { child: FileId(2), kind: FileKind::Regular, name: Bytes::from_static(b"name") };
    let format = FormatRecord { fsid: Fsid([6; 16]), created: NOW, cookies: CookieKey([7; 16]) };
    let doomed = Doomed { id: FileId(8), generation: Generation(9), layout };
    vec![
        input(&core, &tail),
        input(&tail, &Delta::Tail(delta).to_bytes()),
        input(&link.to_value(), &[]),
        input(&dentry.to_value(), &[]),
        input(&format.to_value(), &[]),
        input(&doomed.to_value(), &[]),
        input(&Delta::Files(-1).to_bytes(), &[]),
    ]
}

#[test]
fn damaged_records() {
    for bytes in good() {
        fuzzed::run(&bytes);
        for seed in 0..2000 {
            fuzzed::run(&mutate::mutate(&bytes, seed));
        }
    }
}

proptest! {
    #[test]
    fn noise(data in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzzed::run(&data);
    }
}
