//! Tests of inline files: writes, truncates, and moving the inline bytes to objects.

#[path = "common/block.rs"]
mod block;

use block::block;
use bytes::Bytes;
use meta::{CreateMode, Format, Layout, Memory, Namespace, merge};
use proptest::prelude::*;
use types::{Cred, FileId, Fsid, SetAttrs, Status, Timestamp};

const NOW: Timestamp = Timestamp { secs: 100, nanos: 0 };
const MOST: u64 = 300;

fn layout() -> Layout {
    Layout { kind: 7, body: Bytes::from_static(b"where") }
}

fn world() -> (Namespace<Memory>, FileId) {
    let format =
        Format { fsid: Fsid([7; 16]), now: NOW, cookie_key: [3; 16], root_mode: 0o755, root_uid: 0, root_gid: 0 };
    let fs = block(Namespace::format(Memory::new(merge), format)).expect("format");
    let how = CreateMode::Guarded(SetAttrs { mode: Some(0o644), ..SetAttrs::default() });
    let layout = layout().inline();
    let made = block(fs.create(&Cred::root(), NOW, FileId::ROOT, b"f", &how, Some(&layout))).expect("create");
    (fs, made.file.attrs.id)
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    Cut(u64),
    Grow(u64),
    Leave,
    Arrive,
    Remove,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..MOST, prop::collection::vec(1u8.., 1..60)).prop_map(|(at, data)| Step::Write(at, data)),
        3 => (0..MOST + 50).prop_map(Step::Cut),
        1 => (0..MOST + 50).prop_map(Step::Grow),
        1 => Just(Step::Leave),
        1 => Just(Step::Arrive),
        1 => Just(Step::Remove),
    ]
}

/// Where the bytes of a file are stored: with the metadata, in objects, or with the metadata while they move to
/// objects.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Stage {
    Kept,
    Moving,
    Gone,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Random operations on an inline file must give the same content as on a flat buffer, until the bytes of the file
    /// are in objects. While the bytes move to objects, the namespace must refuse writes and truncates.
    #[test]
    fn an_inline_file_equals_a_flat_buffer(steps in prop::collection::vec(step(), 1..25)) {
        let (fs, id) = world();
        let (mut flat, mut stage, root) = (Vec::<u8>::new(), Stage::Kept, Cred::root());
        for step in steps {
            match step {
                Step::Write(at, data) => {
                    let end = at as usize + data.len();
                    let fits = stage == Stage::Kept && end as u64 <= MOST && flat.len() as u64 <= MOST;
                    let written = block(fs.write_inline(&root, NOW, id, (at, &data, MOST), false)).expect("write");
                    prop_assert_eq!(written.is_some(), fits);
                    if fits {
                        flat.resize(flat.len().max(end), 0);
                        flat[at as usize..end].copy_from_slice(&data);
                    }
                }
                Step::Cut(size) => {
                    let set = SetAttrs { size: Some(size), ..SetAttrs::default() };
                    let cut = block(fs.setattr(&root, NOW, id, &set, true));
                    if stage == Stage::Moving {
                        prop_assert_eq!(cut.map(drop), Err(Status::Delay));
                    } else {
                        cut.expect("cut");
                        flat.resize(size as usize, 0);
                    }
                }
                Step::Grow(end) => {
                    block(fs.record_write(&root, NOW, id, end)).expect("grow");
                    flat.resize(flat.len().max(end as usize), 0);
                }
                Step::Leave => {
                    let kept = fs.read_inline(id).expect("read").map(|(bytes, _)| bytes);
                    let (info, bytes) = block(fs.set_layout(NOW, id, &layout())).expect("layout");
                    prop_assert_eq!(bytes.clone().unwrap_or_default(), kept.unwrap_or_default());
                    if stage == Stage::Kept {
                        stage = if bytes.is_some() { Stage::Moving } else { Stage::Gone };
                    }
                    let now = info.layout.expect("layout");
                    prop_assert_eq!((now.is_moving(), now.is_final()), (stage == Stage::Moving, stage == Stage::Gone));
                    prop_assert_eq!(now.decided(), Some(Ok(layout())));
                }
                Step::Arrive => {
                    let info = block(fs.arrived(NOW, id)).expect("arrived");
                    stage = if stage == Stage::Moving { Stage::Gone } else { stage };
                    prop_assert_eq!(info.layout.is_some_and(|layout| layout.is_final()), stage == Stage::Gone);
                }
                Step::Remove => {
                    block(fs.remove(&root, NOW, FileId::ROOT, b"f")).expect("remove");
                    let doomed = block(fs.reap(NOW, id)).expect("reap");
                    prop_assert_eq!(doomed.map(|doomed| doomed.layout), (stage != Stage::Kept).then(layout));
                    prop_assert_eq!(fs.check().expect("check"), []);
                    return Ok(());
                }
            }
            let read = fs.read_inline(id).expect("read");
            prop_assert_eq!(read.is_none(), stage == Stage::Gone);
            if let Some((bytes, size)) = read {
                let mut all = bytes.to_vec();
                prop_assert!(all.len() as u64 <= size);
                all.resize(size as usize, 0);
                prop_assert_eq!(&all, &flat);
            }
            prop_assert_eq!(fs.check().expect("check"), []);
        }
    }
}
