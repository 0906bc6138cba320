//! What the mgr answers on its port.

use crate::cluster::{Cluster, create, pattern, write};
use net::rpc::{Connection, Limits, NoService, Refusal};
use net::{Counters, Error};
use nfs::fs::Stability;
use std::sync::Arc;
use std::time::Duration;
use wire::admin::{self, Status};
use wire::nfs4::NFS4_PROGRAM;
use wire::rpc::{AUTH_TOOWEAK, Auth};
use xdr::{Segments, Xdr};

const LONG: Duration = Duration::from_secs(60);

async fn connect(cluster: &Cluster) -> Connection {
    let address = &cluster.mgr().addresses()[0];
    Connection::connect(address, Arc::new(NoService), Limits::default(), Counters::default(), LONG).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_versions_and_procedures() {
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
async fn status_tells_of_daemons_and_counts() {
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
    // Both stores are on one disk, which counts once.
    assert_eq!(group("mgr").get_number("capacity_bytes"), group("iod").get_number("capacity_bytes"));
    assert_eq!(group("counters").get_number("proxy_write_bytes"), 500);
    assert!(group("store").get_number("flushes") > 0);
    assert_eq!(group("network").get_number("connections_open"), 1 + 2 * 4, "one of ours, four to each iod");
    let iods: Vec<_> = status.groups.iter().filter(|g| g.name == "iod").collect();
    assert_eq!(iods.len(), 2);
    for (iod, address) in iods.iter().zip(&cluster.config.iods) {
        assert_eq!(iod.get("address").cloned(), text(address.clone()));
        assert_eq!(iod.get("state").cloned(), text("up".into()));
        assert!(iod.get("software").is_some() && iod.get_number("capacity_bytes") > 0);
    }
    assert!(!format!("{status:?}").contains("secret"));
}
