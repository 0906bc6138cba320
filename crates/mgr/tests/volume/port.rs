//! The mgr's port: its RPC programs, the status, and the local socket hint.

use crate::cluster::{Cluster, create, pattern, write};
use net::rpc::{Connection, Limits, NoService, Refusal};
use net::{Address, Counters, Error};
use nfs::fs::Stability;
use std::sync::Arc;
use std::time::Duration;
use wire::admin::{self, LocalSocketArgs, LocalSocketReply, Status};
use wire::nfs4::NFS4_PROGRAM;
use wire::rpc::{AUTH_TOOWEAK, Auth};
use xdr::{Segments, Xdr};

const LONG: Duration = Duration::from_secs(60);

async fn connect(cluster: &Cluster) -> Connection {
    connect_to(&cluster.mgr().addresses()[0]).await
}

async fn connect_to(address: &Address) -> Connection {
    Connection::connect(address, Arc::new(NoService), Limits::default(), Counters::default(), LONG).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_programs_versions_and_procedures_are_refused() {
    let cluster = Cluster::new(1, "64").await;
    let connection = connect(&cluster).await;
    let call = async |program, version, procedure, auth: &Auth| match connection
        .call(program, version, procedure, auth, Segments::default(), LONG)
        .await
    {
        Ok(reply) => Ok(reply.body.remaining()),
        Err(Error::Refused(refusal)) => Err(refusal),
        Err(other) => panic!("{other}"),
    };
    let none = &Auth::None;
    let tls = Auth::Other { flavor: 7, body: Default::default() };
    assert_eq!(call(NFS4_PROGRAM, 4, 0, none).await, Ok(0));
    assert_eq!(call(NFS4_PROGRAM, 3, 0, none).await, Err(Refusal::ProgMismatch { low: 4, high: 4 }));
    assert_eq!(call(NFS4_PROGRAM, 4, 2, none).await, Err(Refusal::ProcUnavail));
    assert_eq!(call(NFS4_PROGRAM, 4, 1, none).await, Err(Refusal::GarbageArgs));
    assert_eq!(call(NFS4_PROGRAM, 4, 1, &tls).await, Err(Refusal::Auth(AUTH_TOOWEAK)));
    assert_eq!(call(wire::native::PROGRAM, 1, 0, none).await, Err(Refusal::ProgUnavail));
    assert_eq!(call(admin::PROGRAM, admin::VERSION, admin::NULL, none).await, Ok(0));
    assert_eq!(call(admin::PROGRAM, 9, 0, none).await, Err(Refusal::ProgMismatch { low: 1, high: 1 }));
    assert_eq!(call(admin::PROGRAM, 1, 9, none).await, Err(Refusal::ProcUnavail));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_shows_daemons_and_counters() {
    let cluster = Cluster::new(2, "64").await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    write(&files, file, 0, &pattern(500, 1), Stability::FileSync).await;
    let connection = connect(&cluster).await;
    let ask = async || {
        let reply = connection.call(admin::PROGRAM, 1, admin::STATUS, &Auth::None, Segments::default(), LONG).await;
        Status::from_bytes(&reply.unwrap().body.rest()).unwrap()
    };
    let status = ask().await;
    let group = |name: &str| status.group(name).unwrap();
    let text = |text: String| Some(admin::Value::Text(text));
    assert_eq!(group("mgr").get("fsid").cloned(), text(cluster.file.fsid.to_string()));
    assert_eq!(group("mgr").get_number("files"), 2);
    assert!(group("mgr").get_number("capacity_bytes") >= group("mgr").get_number("free_bytes"));
    assert!(group("mgr").get_number("free_bytes") > 0);
    // The stores of both iods are on one disk, so the capacity of this disk counts once.
    assert_eq!(group("mgr").get_number("capacity_bytes"), group("iod").get_number("capacity_bytes"));
    assert_eq!(group("counters").get_number("proxy_write_bytes"), 500);
    assert!(group("store").get_number("flushes") > 0);
    assert_eq!(
        group("network").get_number("connections_open"),
        1 + 2 * 4,
        "one connection of the test and four to each iod"
    );
    let iods: Vec<_> = status.groups.iter().filter(|g| g.name == "iod").collect();
    assert_eq!(iods.len(), 2);
    for (iod, address) in iods.iter().zip(&cluster.config.iods) {
        assert_eq!(iod.get("address").cloned(), text(address.clone()));
        assert_eq!(iod.get("state").cloned(), text("up".into()));
        assert!(iod.get("software").is_some() && iod.get_number("capacity_bytes") > 0);
    }
    assert!(!format!("{status:?}").contains("secret"));
}

/// Returns the mgr's reply to LOCAL_SOCKET for a client that reports `from` as its own address.
async fn local_socket(connection: &Connection, from: &str) -> LocalSocketReply {
    let args = LocalSocketArgs { from: from.to_owned() };
    let call = connection.call(admin::PROGRAM, 1, admin::LOCAL_SOCKET, &Auth::None, args.to_bytes().into(), LONG);
    LocalSocketReply::from_bytes(&call.await.unwrap().body.rest()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_clients_learn_the_unix_socket() {
    let mut cluster = Cluster::new(1, "64").await;
    let tcp = connect(&cluster).await;
    let from = tcp.local().unwrap().to_string();
    let told = local_socket(&tcp, &from).await;
    let path = told.local.unwrap().path;
    let unix = connect_to(&path.parse().unwrap()).await;
    assert_eq!(unix.local(), None);
    assert_eq!(local_socket(&unix, "").await, LocalSocketReply { run: told.run, local: None }, "the same mgr");
    // Each address that the client reports here is invalid, or is not the address that the mgr sees, as if a proxy
    // were in between. So the mgr does not send the path of its socket.
    for from in ["", "127.0.0.1:1", "10.0.0.7:2049", "localhost:7", "/run/mgr.sock", "nonsense"] {
        assert_eq!(local_socket(&tcp, from).await, LocalSocketReply { run: 0, local: None }, "{from:?}");
    }
    cluster.restart_mgr().await;
    let tcp = connect(&cluster).await;
    let again = local_socket(&tcp, &tcp.local().unwrap().to_string()).await;
    assert_eq!(again.local.map(|local| local.path), Some(path));
    assert_ne!(again.run, told.run);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_socket_is_offered_only_if_it_shows_the_same_exports() {
    let mut cluster = Cluster::stopped(1, "64").await;
    // Over the Unix socket, every client counts as 127.0.0.1.
    for (export, is_told) in
        [("/a,clients=127.0.0.1", false), ("/a,clients=::1", false), ("/a,clients=::1+127.0.0.1", true), ("/a", true)]
    {
        cluster.config.listen = vec!["[::1]:0".to_owned()];
        cluster.config.exports = vec![export.parse().unwrap()];
        cluster.start_mgr().await;
        let tcp = connect(&cluster).await;
        let from = tcp.local().unwrap().to_string();
        assert_eq!(local_socket(&tcp, &from).await.local.is_some(), is_told, "{export}");
        cluster.mgr.take().unwrap().stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mgr_does_not_connect_to_an_iod_socket_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TESTED: needs root");
        return;
    }
    let mut cluster = Cluster::stopped(1, "64").await;
    let path = cluster.iods[0].as_ref().unwrap().unix_path().unwrap().to_owned();
    std::fs::remove_file(&path).unwrap();
    let another = std::os::unix::net::UnixListener::bind(&path).unwrap();
    another.set_nonblocking(true).unwrap();
    std::os::unix::fs::chown(&path, Some(4242), None).unwrap();
    cluster.start_mgr().await;
    let files = cluster.files();
    let file = create(&files, "f").await;
    write(&files, file, 0, &pattern(500, 1), Stability::FileSync).await;
    let came = another.accept().map(drop).map_err(|error| error.kind());
    assert_eq!(came, Err(std::io::ErrorKind::WouldBlock), "the mgr connected to the socket of another user");
    // Now root owns the socket, so the mgr trusts the socket and connects to it. No process replies at the socket, so
    // the mgr then uses TCP.
    drop(files);
    std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    another.set_nonblocking(false).unwrap();
    let came = std::thread::spawn(move || another.accept().map(drop));
    cluster.restart_mgr().await;
    came.join().unwrap().unwrap();
}
