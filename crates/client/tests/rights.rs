//! Tests of capabilities. The client renews its capabilities before they expire, and sends none to a server that cannot
//! prove that it is an iod.

use crate::cluster::{Cluster, options};
use bytes::Bytes;
use client::{CreateOptions, Options, Origin, Settings};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::native::Procedure;

/// Returns options for the direct path without read-ahead and short-circuit reads, so that every read and write reaches
/// an iod.
fn straight() -> Options {
    let words = "write_threshold=0,read_ahead=0";
    Options { policy: Settings::parse(Origin::Mount, words).unwrap(), short_circuit: false, ..options() }
}

fn refused_expired(cluster: &Cluster) -> u64 {
    let counters = cluster.iods.iter().flatten().flat_map(iod::Running::counters);
    counters.filter(|counter| counter.name == "refused.expired").map(|counter| counter.value).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_layout_of_a_file_in_use_is_renewed_before_it_expires() {
    let mut cluster = Cluster::start(2).await;
    cluster.capability_secs = Some(5);
    cluster.restart_mgr().await;
    let mount = cluster.mount(straight()).await;
    let file = mount.create(&mount.root(), b"f", CreateOptions::default()).await.unwrap();
    file.write_at(0, Bytes::from(vec![1; 1 << 20])).await.unwrap();
    let given = || cluster.mgr.as_ref().unwrap().counters().layouts_write;
    let (before, begun) = (given(), Instant::now());
    // Read and write until the client has renewed its layout twice. By then, the capability in the first layout has
    // expired.
    let mut number = 0u64;
    while given() < before + 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the layout was never renewed");
        number += 1;
        file.write_at(number % 256 * 4096, Bytes::from(vec![number as u8; 4096])).await.unwrap();
        file.fsync().await.unwrap();
        assert_eq!(file.read_at(number % 256 * 4096, 4096).await.unwrap().to_vec(), vec![number as u8; 4096]);
    }
    assert_eq!(refused_expired(&cluster), 0);
    file.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_prove_to_be_an_iod_gets_no_capability() {
    let mut cluster = Cluster::start_behind(1, false, |address| address).await;
    let mount = cluster.mount(straight()).await;
    let file = mount.create(&mount.root(), b"f", CreateOptions::default()).await.unwrap();
    let data = vec![5; 1 << 20];
    file.write_at(0, Bytes::from(data.clone())).await.unwrap();
    file.fsync().await.unwrap();
    let genuine = cluster.iods[0].as_ref().unwrap();
    let answer = crate::false_iod::known_to_all(genuine.iod(), cluster.file.fsid);
    let (at, file) = (genuine.addrs()[0], Arc::new(file));
    cluster.stop_iod(0);
    let listener = TcpListener::bind(at).unwrap();
    let address = listener.try_clone().unwrap();
    let heard = crate::false_iod::listen(listener, answer);
    let read = tokio::spawn({
        let file = file.clone();
        async move { file.read_at(0, 1 << 20).await }
    });
    let begun = Instant::now();
    while heard.lock().unwrap().len() < 4 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no client connected");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Stop the false iod, so that the genuine iod can listen on the address again.
    rustix::net::shutdown(&address, rustix::net::Shutdown::Both).unwrap();
    drop(address);
    assert!(heard.lock().unwrap().iter().all(|(procedure, _)| *procedure == Procedure::Hello as u32), "{heard:?}");
    let back = Instant::now();
    while TcpListener::bind(at).is_err() {
        assert!(back.elapsed() < Duration::from_secs(60), "the address is still in use");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cluster.start_iod(0);
    assert_eq!(read.await.unwrap().unwrap().to_vec(), data);
}
