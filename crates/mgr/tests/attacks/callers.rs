//! Attacks by false identity: clients that act as another user, destroy client records of other clients, or read the
//! mgr's state.

use crate::cluster::Cluster;
use crate::link::{Link, Place, call};
use crate::peer::{Peer, connect_from};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use wire::admin::{self, Status};
use wire::nfs4::nfs_argop4 as Op;
use wire::nfs4::*;
use wire::rpc::{AUTH_REJECTEDCRED, Message, RejectStat, ReplyStat, decode_message};
use xdr::{Reader, Segments, Xdr};

const HERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
/// Environment variable with the path of the mgr's Unix socket, for the child process that runs as another user.
const SOCKET: &str = "WEIR_TEST_SOCKET";
const SOMEBODY: u32 = 65_534;

fn address(cluster: &Cluster) -> SocketAddr {
    cluster.mgr().addresses()[0].to_string().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_user_of_a_client_record_can_destroy_it() {
    let cluster = Cluster::new(1, "64K").await;
    let mgr = address(&cluster);
    let mut victim = Peer::new(HERE, mgr, 1000);
    let mut attacker = Peer::new(HERE, mgr, 1001);
    // An attacker cannot guess client ids, because consecutive clients do not get consecutive ids.
    let far = |a: u64, b: u64| (a as u32).wrapping_sub(b as u32).min((b as u32).wrapping_sub(a as u32)) > 1000;
    assert!(far(victim.client, attacker.client), "{:x} {:x}", victim.client, attacker.client);
    let idle = Peer::introduce(HERE, mgr, 1000);
    let destroy = |client| vec![Op::OP_DESTROY_CLIENTID(DESTROY_CLIENTID4args { dca_clientid: client })];
    assert_eq!(attacker.raw(destroy(idle.client)).status, NFS4ERR_WRONG_CRED);
    assert_eq!(attacker.raw(destroy(victim.client)).status, NFS4ERR_WRONG_CRED);
    assert_eq!(victim.raw(destroy(idle.client)).status, NFS4_OK);
    assert!(victim.walk("/").is_ok());
}

/// Returns the mgr's reply to a STATUS request from the address `from`.
fn status(from: Ipv4Addr, mgr: SocketAddr) -> Status {
    let mut link = Link::over(connect_from(from, mgr));
    link.send(call(1, (admin::PROGRAM, admin::VERSION), admin::STATUS, None, Segments::default())).unwrap();
    let mut reply = Reader::new(link.receive().unwrap());
    assert!(matches!(decode_message(&mut reply).unwrap(), Message::Reply(_)));
    Status::from_bytes(&reply.rest()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_shows_other_users_only_that_a_mgr_runs() {
    let mut cluster = Cluster::stopped(1, "64K").await;
    cluster.config.exports = vec!["/,clients=127.0.0.2".parse().unwrap()];
    cluster.start_mgr().await;
    let mgr = address(&cluster);
    let told = status(HERE, mgr);
    assert_eq!(told.groups.len(), 1, "{told:?}");
    let names: Vec<&str> = told.groups[0].values.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, ["state", "software"]);
    assert!(status(Ipv4Addr::new(127, 0, 0, 2), mgr).group("iod").is_some());
    // The mgr refuses NFS requests from clients that see no export, before they can create a client record.
    let mut link = Link::over(connect_from(HERE, mgr));
    let body = COMPOUND4args { argarray: vec![Op::OP_PUTROOTFH], minorversion: 2, ..COMPOUND4args::default() };
    link.send(call(7, (NFS4_PROGRAM, 4), 1, Some(0), body.to_bytes().into())).unwrap();
    let reply = decode_message(&mut Reader::new(link.receive().unwrap())).unwrap();
    let Message::Reply(reply) = reply else { panic!("{reply:?}") };
    assert!(matches!(reply.stat, ReplyStat::Denied(RejectStat::AuthError(AUTH_REJECTEDCRED))), "{reply:?}");
    assert!(Peer::new(Ipv4Addr::new(127, 0, 0, 2), mgr, 0).walk("/").is_ok());
}

/// On a Unix socket, the kernel reports the user of the peer process. So a process of another user cannot act as root.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_unix_socket_does_not_trust_a_claimed_uid() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TESTED: needs root");
        return;
    }
    let cluster = Cluster::new(1, "64K").await;
    let mut owner = Peer::new(HERE, address(&cluster), 0);
    let root = owner.walk("/").unwrap();
    owner.file(&root, "secret", b"SECRET");
    let args = SETATTR4args { stateid: stateid4::default(), obj_attributes: mode(0o600) };
    let secret = owner.below(&root, "secret").unwrap();
    assert_eq!(owner.patiently(vec![crate::peer::putfh(&secret), Op::OP_SETATTR(args)]).0, NFS4_OK);
    let Some(net::Address::Unix(socket)) = cluster.mgr().nearby().cloned() else { panic!("it has a Unix socket") };
    // Let processes of all users reach the mgr's Unix socket.
    for dir in socket.ancestors().skip(1).take_while(|dir| dir.starts_with(cluster.dir.path())) {
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let program = cluster.dir.path().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut somebody = Command::new(&program);
    somebody.args(["--exact", "callers::open_as_another_user", "--ignored", "--nocapture"]).env(SOCKET, &socket);
    let output = somebody.uid(SOMEBODY).gid(SOMEBODY).current_dir("/").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    // On the socket, a process of root may act for any user, because a mount sends requests for all its users.
    let mut mount = Peer::over(Link::connect(&Place::Unix(socket.clone()), Duration::from_secs(20)).unwrap(), SOMEBODY);
    assert_eq!(mount.open_to_read(&secret), NFS4ERR_ACCESS);
    let mut mount = Peer::over(Link::connect(&Place::Unix(socket), Duration::from_secs(20)).unwrap(), 0);
    assert_eq!(mount.open_to_read(&secret), NFS4_OK);
}

fn mode(mode: u32) -> fattr4 {
    let attr_vals = mode.to_be_bytes().to_vec().into();
    fattr4 { attrmask: vec![0, 1 << (FATTR4_MODE - 32)], attr_vals }
}

/// The test `the_unix_socket_does_not_trust_a_claimed_uid` runs this function in a child process of another user.
#[test]
#[ignore = "run by a test as another user"]
fn open_as_another_user() {
    let socket = std::env::var(SOCKET).unwrap();
    let link = Link::connect(&Place::Unix(Path::new(&socket).to_owned()), Duration::from_secs(20)).unwrap();
    let mut liar = Peer::over(link, 0);
    let secret = liar.walk("/secret").unwrap();
    assert_eq!(liar.open_to_read(&secret), NFS4ERR_ACCESS);
}
