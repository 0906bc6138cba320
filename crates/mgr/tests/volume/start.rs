//! Errors at the start of a mgr: each cause has its own message, which says what the user must do.

use crate::cluster::{Cluster, create, ctx, pattern, read, until, write};
use mgr::{ClusterFile, Config, Mgr};
use nfs::fs::{FileSystem, Stability};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use wire::admin::Value;

/// Copies a directory tree with all its files.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (kind, to) = (entry.file_type().unwrap(), to.join(entry.file_name()));
        match kind.is_dir() {
            true => copy(&entry.path(), &to),
            false if kind.is_file() => drop(std::fs::copy(entry.path(), to).unwrap()),
            false => {}
        }
    }
}

async fn error(config: Config) -> String {
    match Mgr::start(config).await {
        Ok(_) => panic!("the mgr has started"),
        Err(e) => e.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_errors_name_the_cause_and_the_remedy() {
    let mut cluster = Cluster::new(1, "64").await;
    let config = cluster.config.clone();
    let path = |name: &str| cluster.dir.path().join(name);
    let second = error(config.clone()).await;
    assert!(second.contains("another mgr"), "{second}");
    let missing = error(Config { dir: path("nowhere"), ..config.clone() }).await;
    assert!(missing.contains("nowhere") && missing.contains("weir mkfs"), "{missing}");
    let no_dir = error(Config { dir: config.cluster_file.clone(), ..config.clone() }).await;
    assert!(no_dir.contains("not a directory"), "{no_dir}");
    std::fs::create_dir(path("empty")).unwrap();
    let empty = error(Config { dir: path("empty"), ..config.clone() }).await;
    assert!(empty.contains("weir mkfs"), "{empty}");
    std::fs::create_dir(path("junk")).unwrap();
    std::fs::write(path("junk").join("meta.redb"), "junk").unwrap();
    let junk = error(Config { dir: path("junk"), ..config.clone() }).await;
    assert!(junk.contains("not a metadata store"), "{junk}");
    let no_iods = error(Config { iods: vec![], ..config.clone() }).await;
    assert!(no_iods.starts_with("iods"), "{no_iods}");
    let no_file = error(Config { cluster_file: path("no.toml"), ..config.clone() }).await;
    assert!(no_file.contains("no.toml") && no_file.contains("weir mkfs"), "{no_file}");

    let address = cluster.mgr().addresses()[0].to_string();
    cluster.mgr.take().unwrap().stop().await;
    let busy = std::net::TcpListener::bind(&address).unwrap();
    let in_use = error(Config { listen: vec![address.clone()], ..config.clone() }).await;
    assert!(in_use.contains(&address) && in_use.contains("another daemon"), "{in_use}");
    drop(busy);
    ClusterFile::create(&path("other.toml")).unwrap();
    let foreign = error(Config { cluster_file: path("other.toml"), ..config.clone() }).await;
    assert!(foreign.contains("other.toml") && foreign.contains(&cluster.file.fsid.to_string()), "{foreign}");
    let again = mgr::format(&config.dir, &cluster.file).await.unwrap_err().to_string();
    assert!(again.contains("already"), "{again}");
    // The failed starts of the mgr have not changed the metadata store, so the mgr can start now.
    cluster.start_mgr().await;
    create(&cluster.files(), "f").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_and_duplicate_iods_are_refused_and_shown() {
    let mut cluster = Cluster::stopped(1, "64").await;
    let other = Cluster::stopped(1, "64").await;
    let own = cluster.config.iods[0].clone();
    let foreign = other.config.iods[0].clone();
    let twice = own.replace("127.0.0.1", "localhost");
    cluster.config.iods = vec![own.clone(), foreign.clone(), twice.clone(), "127.0.0.1:1".into()];
    cluster.start_mgr().await;
    let problem = |address: &str| {
        let status = cluster.mgr().status();
        let is_it = |g: &&wire::admin::Group| g.get("address") == Some(&Value::Text(address.into()));
        let group = status.groups.iter().filter(|g| g.name == "iod").find(is_it).unwrap().clone();
        match group.get("problem") {
            Some(Value::Text(text)) => text.clone(),
            _ => String::new(),
        }
    };
    assert!(problem(&foreign).contains("another file system"), "{}", problem(&foreign));
    assert!(problem("127.0.0.1:1").contains("refused"), "{}", problem("127.0.0.1:1"));
    // The mgr uses an iod only at the address at which the mgr reached it first. It refuses the same iod at a second
    // address.
    let (first, second) = (problem(&own), problem(&twice));
    assert!(first.is_empty() != second.is_empty(), "{first:?} {second:?}");
    assert!(format!("{first}{second}").contains("another configured address"));
    assert_eq!(cluster.up(), 1);
    create(&cluster.files(), "f").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_iod_whose_disk_is_an_older_copy_is_not_used() {
    let mut cluster = Cluster::new(2, "64").await;
    cluster.wait_up(2).await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    write(&files, file, 0, &pattern(300, 1), Stability::FileSync).await;
    files.closed(&ctx(1), file, true).await.unwrap();
    let (disk, older, newer) = (cluster.iod_dir(1), cluster.dir.path().join("older"), cluster.dir.path().join("newer"));
    cluster.stop_iod(1);
    copy(&disk, &older);
    until("it is gone", || cluster.up() == 1).await;
    cluster.start_iod(1);
    cluster.wait_up(2).await;
    // Each start of the mgr stores a new mark (a random number) on the iods. A disk with an earlier mark is an older
    // copy, which the mgr detects in this way.
    drop(files);
    cluster.restart_mgr().await;
    cluster.wait_up(2).await;
    let files = cluster.files();
    write(&files, file, 0, &pattern(300, 2), Stability::FileSync).await;
    cluster.stop_iod(1);
    std::fs::rename(&disk, &newer).unwrap();
    std::fs::rename(&older, &disk).unwrap();
    until("it is gone", || cluster.up() == 1).await;
    cluster.start_iod(1);
    let says = |cluster: &Cluster, said: &str| {
        let problem = |g: &wire::admin::Group| match g.get("problem") {
            Some(Value::Text(text)) => text.contains(said),
            _ => false,
        };
        cluster.mgr().status().groups.iter().any(problem)
    };
    until("it is told of", || says(&cluster, "its disk is an older copy")).await;
    // A restarted mgr also refuses the iod whose disk is an older copy.
    drop(files);
    cluster.restart_mgr().await;
    until("it is told of again", || says(&cluster, "its disk is an older copy")).await;
    assert_eq!(cluster.up(), 1);
    cluster.stop_iod(1);
    std::fs::remove_dir_all(&disk).unwrap();
    std::fs::rename(&newer, &disk).unwrap();
    cluster.start_iod(1);
    cluster.wait_up(2).await;
    assert!(read(&cluster.files(), file, 0, 300).await.unwrap() == pattern(300, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn iod_numbers_never_change() {
    let mut cluster = Cluster::new(3, "64").await;
    let numbers = |cluster: &Cluster| {
        let status = cluster.mgr().status();
        let mut rows: Vec<_> = status
            .groups
            .iter()
            .filter(|g| g.name == "iod")
            .map(|g| (format!("{:?}", g.get("id")), g.get_number("number")))
            .collect();
        rows.sort();
        rows
    };
    let before = numbers(&cluster);
    assert_eq!(before.iter().map(|r| r.1).collect::<std::collections::BTreeSet<_>>().len(), 3);
    cluster.config.iods.reverse();
    cluster.restart_mgr().await;
    assert_eq!(numbers(&cluster), before);
    // The status still shows an iod whose address is no longer configured, because the iod holds data.
    cluster.config.iods.pop();
    cluster.restart_mgr().await;
    until("two are up", || cluster.up() == 2).await;
    assert_eq!(numbers(&cluster), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mgr_waits_for_a_store_that_its_predecessor_still_holds() {
    let mut cluster = Cluster::stopped(1, "64").await;
    let held = meta::Embedded::open(&cluster.config.dir.join("meta.redb"), meta::merge).unwrap();
    {
        let mut start = std::pin::pin!(cluster.start_mgr());
        // The start of the mgr waits while another process has the store open.
        let early = tokio::time::timeout(Duration::from_millis(300), &mut start).await;
        assert!(early.is_err(), "two mgrs use the store at the same time");
        drop(held);
        start.await;
    }
    create(&cluster.files(), "f").await;
}

/// Starts a proxy to an iod and returns the address of the proxy. On each connection, the proxy forwards only the first
/// call and its reply.
async fn proxy_that_falls_silent(iod: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut far = TcpStream::connect(&iod).await.unwrap();
            tokio::spawn(async move {
                let (mut call, mut answer) = ([0; 1024], [0; 1024]);
                let len = near.read(&mut call).await?;
                far.write_all(&call[..len]).await?;
                let len = far.read(&mut answer).await?;
                near.write_all(&answer[..len]).await?;
                while near.read(&mut call).await? > 0 {}
                std::io::Result::Ok(())
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_iod_does_not_block_clients_from_other_iods() {
    let mut cluster = Cluster::stopped(2, "64").await;
    cluster.stop_iod(1);
    cluster.start_iod_with(1, false);
    cluster.config.iods[1] = proxy_that_falls_silent(cluster.config.iods[1].clone()).await;
    tokio::time::timeout(Duration::from_secs(30), cluster.start_mgr()).await.expect("the mgr waits for a silent iod");
    assert_eq!(cluster.up(), 1);
    let file = create(&cluster.files(), "f").await;
    write(&cluster.files(), file, 0, b"somewhere", Stability::FileSync).await;
}
