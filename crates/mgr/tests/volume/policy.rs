//! Policies that the mgr sends to clients: to Weir's own client in a private attribute, to kernel clients in the
//! attribute `mdsthreshold`.

use crate::cluster::{Cluster, ctx, mode};
use bytes::Bytes;
use mgr::{Export, Files};
use nfs::fs::{CreateKind, FileSystem, OpenHow, XattrHow};
use types::{FileId, Status};

fn name(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

async fn set(files: &Files, file: FileId, key: &'static str, value: &'static str) -> Result<(), Status> {
    files.setxattr(&ctx(1), file, &name(key), name(value), XattrHow::Either).await.map(drop)
}

fn reported(files: &Files, file: FileId) -> (String, String) {
    let told = files.policy(&ctx(1), file).unwrap().unwrap();
    let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    (text(told.server), text(told.own))
}

async fn tree(files: &Files) -> (FileId, FileId) {
    let dir = files.create(&ctx(1), FileId::ROOT, &name("d"), CreateKind::Directory, mode(0o755)).await.unwrap();
    let dir = dir.attrs.id;
    let file = files.open_create(&ctx(1), dir, &name("f"), OpenHow::Guarded, mode(0o644), false).await.unwrap();
    (dir, file.attrs.id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_policy_lists_all_settings_that_are_not_default() {
    let mut cluster = Cluster::stopped(1, "1M").await;
    cluster.start_mgr().await;
    assert_eq!(reported(&cluster.files(), FileId::ROOT), (String::new(), String::new()));
    cluster.config.policy = Some("write_threshold=32K,access=page".into());
    cluster.config.stripe_unit = "64K".into();
    cluster.config.mgr_gather_delay_ms = 7;
    cluster.config.exports = vec!["/,policy=access=direct+read_threshold=4K".parse::<Export>().unwrap()];
    cluster.restart_mgr().await;
    let (server, own) = reported(&cluster.files(), FileId::ROOT);
    let all = "stripe_unit=64K,write_threshold=32K,read_threshold=4K,access=direct,mgr_gather_delay=7ms";
    assert_eq!((server.as_str(), own.as_str()), (all, ""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_and_files_report_their_own_policy() {
    let cluster = Cluster::new(1, "1M").await;
    let files = cluster.files();
    let (dir, file) = tree(&files).await;
    for (node, key, value) in [
        (dir, "weir.access", "fast"),
        (dir, "weir.write_threshold", "much"),
        (dir, "weir.mgr_gather_delay", "5ms"),
        (dir, "weir.read_ahead", "1M"),
        (dir, "weir.threshold", "1M"),
        (file, "weir.stripe_unit", "64K"),
        (file, "weir.access", "\0"),
    ] {
        assert_eq!(set(&files, node, key, value).await, Err(Status::Inval), "{key}={value}");
    }
    set(&files, dir, "weir.write_threshold", "32K").await.unwrap();
    set(&files, dir, "weir.stripe_count", "1").await.unwrap();
    set(&files, dir, "author", "me").await.unwrap();
    set(&files, file, "weir.access", "unbuffered").await.unwrap();
    assert_eq!(reported(&files, dir).1, "stripe_count=1,write_threshold=32K");
    assert_eq!(reported(&files, file).1, "access=unbuffered");
    let below = files.create(&ctx(1), dir, &name("below"), CreateKind::Directory, mode(0o755)).await.unwrap();
    assert_eq!(
        reported(&files, below.attrs.id).1,
        "stripe_count=1,write_threshold=32K",
        "a new directory has the policy of its parent"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernels_receive_thresholds_of_server_directory_and_file() {
    let mut cluster = Cluster::new(1, "1M").await;
    let (dir, file) = tree(&cluster.files()).await;
    let of = async |cluster: &Cluster, dir| {
        let told = cluster.files().threshold(&ctx(1), file, dir).await.unwrap();
        told.map(|t| (t.read_size, t.write_size, t.write_iosize))
    };
    let mega = Some(1 << 20);
    assert_eq!(of(&cluster, Some(dir)).await, Some((mega, mega, mega)), "the stripe unit");
    set(&cluster.files(), dir, "weir.write_threshold", "32K").await.unwrap();
    let small = Some(32 << 10);
    assert_eq!(of(&cluster, Some(dir)).await, Some((mega, small, small)));
    assert_eq!(
        of(&cluster, None).await,
        Some((mega, mega, mega)),
        "the mgr does not know by which name the file was opened"
    );
    cluster.config.policy = Some("write_threshold=16K,read_threshold=8K".into());
    cluster.restart_mgr().await;
    assert_eq!(of(&cluster, None).await, Some((Some(8 << 10), Some(16 << 10), Some(16 << 10))));
    set(&cluster.files(), file, "weir.write_threshold", "0").await.unwrap();
    assert_eq!(of(&cluster, Some(dir)).await, Some((Some(8 << 10), None, None)));
    set(&cluster.files(), file, "weir.write_threshold", "auto").await.unwrap();
    assert_eq!(of(&cluster, Some(dir)).await, Some((Some(8 << 10), mega, mega)), "kernels do not know this attribute");
}
