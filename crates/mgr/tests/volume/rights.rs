//! Revocation of rights on the direct path (capabilities and data servers' filehandles), and peers that pose as iods.

use crate::cluster::{Cluster, create, ctx, pattern};
use crate::false_iod;
use crate::layouts::{call, capability, connect, layout, write_direct};
use bytes::Bytes;
use layout::kinds::{files as nfs_files, native};
use mgr::{Files, KernelLayout};
use nfs::fs::{Ctx, FileSystem, Iomode, LayoutAsk, LayoutGone};
use std::net::TcpListener;
use types::{ByteRange, Cred, FileId, ObjectId, SetAttrs, Status};
use wire::native::*;
use xdr::Xdr;

const OWNER: u32 = 5;
const OTHER: u32 = 7;

/// Returns the context of a request by the user `uid` on the client `client`.
fn user(uid: u32, client: u64) -> Ctx {
    Ctx { cred: Cred { uid, gid: uid, groups: Vec::new() }, ..ctx(client) }
}

fn ask(file: FileId, kind: u32, max_body: usize) -> LayoutAsk {
    LayoutAsk { file, kind, iomode: Iomode::ReadWrite, readable: true, range: ByteRange::ALL, min_len: 0, max_body }
}

async fn layout_of(files: &Files, ctx: &Ctx, file: FileId, kind: u32) -> Bytes {
    let body = files.layout_get(ctx, ask(file, kind, types::limits::LAYOUT_BODY_MAX)).await.unwrap().body;
    let gone = LayoutGone::Returned { kind: native::KIND, body: Bytes::new() };
    files.layout_gone(ctx, ctx.client, file, Iomode::ReadWrite, ByteRange::ALL, gone).await.unwrap();
    body
}

/// The capabilities and filehandles from layouts that a process has returned.
struct Held {
    native: native::Body,
    handles: Vec<DataHandle>,
}

impl Held {
    async fn get(files: &Files, ctx: &Ctx, file: FileId) -> Self {
        let native = native::Body::from_bytes(&layout_of(files, ctx, file, native::KIND).await).unwrap();
        let nfs = nfs_files::Body::from_bytes(&layout_of(files, ctx, file, nfs_files::KIND).await).unwrap();
        let handles = nfs.handles.iter().map(|handle| DataHandle::from_bytes(handle).unwrap()).collect();
        Held { native, handles }
    }

    /// Accesses the file on each iod with the capability, and then with the filehandle. Either all requests must
    /// succeed, or all must fail with `Fenced`. Returns whether they succeeded.
    async fn are_good(&self, cluster: &Cluster, client: u64) -> bool {
        let mut answers = Vec::new();
        for (index, device) in self.native.devices.iter().enumerate() {
            let connection = connect(&cluster.files(), client, device.0).await;
            let args = ReadArgs { cap: capability(&self.native, index), extents: vec![Extent { offset: 0, len: 1 }] };
            let read = call::<ReadReply>(&connection, Procedure::Read, &args).await.map(drop);
            answers.push(read.map_err(|failure| failure.status));
            let iod = cluster.iods.iter().flatten().find(|iod| iod.iod() == *device).unwrap();
            let mine = self.handles.iter().filter(|handle| iod.volume().check_handle(handle) != Err(Status::BadHandle));
            for handle in mine {
                let served = iod.volume();
                let checked = served.check_handle(handle);
                let used = |()| served.write_object(handle.object, handle.generation, 0, b"x", false);
                answers.push(checked.map_err(Failure::from).and_then(used).map(drop).map_err(|failure| failure.status));
            }
        }
        assert_eq!(answers.len(), 2 * self.native.devices.len(), "an iod has another number of handles than one");
        let good = answers.iter().all(|answer| *answer == Ok(()));
        assert!(good || answers.iter().all(|answer| *answer == Err(Status::Fenced)), "{answers:?}");
        good
    }
}

async fn set(files: &Files, by: &Ctx, file: FileId, set: SetAttrs) {
    files.setattr(by, file, set, false).await.unwrap();
}

fn mode(mode: u32) -> SetAttrs {
    SetAttrs { mode: Some(mode), ..SetAttrs::default() }
}

/// Starts a cluster whose iods announce that they serve NFS.
async fn cluster() -> Cluster {
    let mut cluster = Cluster::stopped(2, "64").await;
    for iod in 0..2 {
        cluster.stop_iod(iod);
        cluster.start_data_server(iod);
    }
    cluster.config.kernel_layout = KernelLayout::Files;
    cluster.start_mgr().await;
    cluster
}

/// Creates a file of the user [`OWNER`] that all users may read and write, with bytes on both iods.
async fn shared_file(files: &Files, name: &str) -> FileId {
    let file = create(files, name).await;
    let body = layout(files, 3, file, Iomode::ReadWrite).await;
    write_direct(files, 3, &body, 0, &pattern(300, 1)).await.unwrap();
    let durable = native::Update { durable: true, ..native::Update::default() };
    files.layout_commit(&ctx(3), file, (native::KIND, durable.to_bytes()), Some(299), None).await.unwrap();
    let gone = LayoutGone::Returned { kind: native::KIND, body: Bytes::new() };
    files.layout_gone(&ctx(3), 3, file, Iomode::ReadWrite, ByteRange::ALL, gone).await.unwrap();
    set(files, &ctx(1), file, SetAttrs { uid: Some(OWNER), gid: Some(OWNER), ..mode(0o666) }).await;
    file
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_end_when_the_objects_of_a_file_move() {
    let cluster = cluster().await;
    let files = cluster.files();
    let (owner, other) = (user(OWNER, 11), user(OTHER, 12));
    let file = shared_file(&files, "f").await;
    for stream in 1..4 {
        let held = Held::get(&files, &other, file).await;
        assert!(held.are_good(&cluster, 12).await);
        cluster.mgr().swap_layout(file, vec![0, 1]).await.unwrap();
        assert!(!held.are_good(&cluster, 12).await, "the old objects can still be used");
        for user in [&owner, &other] {
            let new = Held::get(&files, user, file).await;
            assert!(new.are_good(&cluster, user.client).await);
            let named = new.handles.iter().map(|handle| handle.object).chain([new.native.object]);
            assert!(named.into_iter().all(|object| object == ObjectId::new(file, stream)), "stream {stream}");
        }
        crate::swap_layout::clean(&cluster, 2).await;
        assert!(!held.are_good(&cluster, 12).await, "the old objects were removed");
    }
}

/// The attack: a client requests layouts, returns them, and keeps the capabilities and filehandles. Then the owner of
/// the file revokes the client's permission to access the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_end_when_the_permission_is_revoked() {
    let cluster = cluster().await;
    let files = cluster.files();
    let (owner, other) = (user(OWNER, 11), user(OTHER, 12));
    let changes = [
        ("chmod", mode(0o600)),
        ("chgrp", SetAttrs { gid: Some(9), ..SetAttrs::default() }),
        ("chown", SetAttrs { uid: Some(9), ..SetAttrs::default() }),
        ("cut", SetAttrs { size: Some(100), ..mode(0o600) }),
    ];
    for (name, change) in changes {
        let file = shared_file(&files, name).await;
        let held = Held::get(&files, &other, file).await;
        let own = Held::get(&files, &owner, file).await;
        assert!(held.are_good(&cluster, 12).await && own.are_good(&cluster, 11).await, "{name}");
        // A change of attributes that takes no permission from a user causes no fence.
        set(&files, &owner, file, mode(0o666)).await;
        set(&files, &ctx(1), file, mode(0o4777)).await;
        assert!(held.are_good(&cluster, 12).await, "{name}");
        let by = if name == "chmod" { &owner } else { &ctx(1) };
        set(&files, by, file, change).await;
        assert!(!held.are_good(&cluster, 12).await, "{name}");
        let again = Held::get(&files, &owner, file).await;
        assert!(again.are_good(&cluster, 11).await, "{name}: rights granted afterwards are valid");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_that_revoke_no_held_right_fence_nothing() {
    let cluster = cluster().await;
    let files = cluster.files();
    let fences = || cluster.iods.iter().flatten().map(|iod| counter(iod, "requests.fence")).sum::<u64>();
    for (who, change) in [
        // The change that tar and rsync make: root writes a file, and then gives it to another owner.
        (ctx(11), SetAttrs { uid: Some(9), gid: Some(9), ..mode(0o600) }),
        // The change by which an owner protects a file (mode 0400). The owner is the only user with rights to the file,
        // and can restore any permission, so the mgr revokes nothing.
        (user(OWNER, 12), mode(0o400)),
    ] {
        let file = create(&files, &format!("f{}", who.client)).await;
        set(&files, &ctx(1), file, SetAttrs { uid: Some(OWNER), gid: Some(OWNER), ..mode(0o644) }).await;
        let before = fences();
        let held = Held::get(&files, &who, file).await;
        set(&files, &ctx(1), file, change).await;
        assert_eq!(fences(), before, "{who:?}");
        assert!(held.are_good(&cluster, who.client).await);
    }
}

/// The mgr sends the pending fences to a restarted iod before the iod serves clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_iod_refuses_rights_fenced_while_it_was_down() {
    let mut cluster = cluster().await;
    let files = cluster.files();
    let (owner, other) = (user(OWNER, 11), user(OTHER, 12));
    let (mut handles, mut shared) = (Vec::new(), Vec::new());
    for n in 0..20 {
        shared.push(shared_file(&files, &format!("f{n}")).await);
        let held = Held::get(&files, &other, shared[n]).await;
        assert!(held.are_good(&cluster, 12).await);
        handles.extend(held.handles);
    }
    cluster.stop_iod(1);
    for file in shared {
        set(&files, &owner, file, mode(0o600)).await;
    }
    cluster.start_data_server(1);
    let served = cluster.iods[1].as_ref().unwrap().volume().clone();
    let mine: Vec<_> = handles.iter().filter(|h| served.check_handle(h) != Err(Status::BadHandle)).collect();
    assert_eq!(mine.len(), 20);
    let takes = |handle: &DataHandle| {
        let used = |()| served.write_object(handle.object, handle.generation, 0, b"x", false);
        served.check_handle(handle).map_err(Failure::from).and_then(used).map_err(|failure| failure.status)
    };
    let began = std::time::Instant::now();
    loop {
        let outcome = takes(mine[19]);
        if outcome == Err(Status::Fenced) {
            break;
        }
        assert!(outcome.is_err(), "the iod executed a request of a fenced client");
        assert!(began.elapsed().as_secs() < 60, "never fenced: {outcome:?}");
        tokio::task::yield_now().await;
    }
    assert!(mine.iter().all(|handle| takes(handle) == Err(Status::Fenced)));
}

fn counter(iod: &iod::Running, name: &str) -> u64 {
    iod.counters().into_iter().find(|counter| counter.name == name).map_or(0, |counter| counter.value)
}

/// A restarted mgr does not know which rights its earlier starts granted. So a change of permissions revokes all these
/// rights.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_from_before_a_mgr_restart_can_be_revoked() {
    let mut cluster = cluster().await;
    let file = shared_file(&cluster.files(), "f").await;
    let held = Held::get(&cluster.files(), &user(OTHER, 12), file).await;
    cluster.restart_mgr().await;
    cluster.restart_mgr().await;
    cluster.wait_up(2).await;
    assert!(held.are_good(&cluster, 12).await, "a restart alone ends no rights");
    set(&cluster.files(), &user(OWNER, 11), file, mode(0o660)).await;
    let now = 0xffff_u64 << 32 | 12;
    assert!(!is_good_for_now(&cluster, &held, now).await);
    // An iod that connects after the revocation also refuses the revoked rights.
    cluster.stop_iod(0);
    cluster.start_data_server(0);
    cluster.restart_mgr().await;
    cluster.wait_up(2).await;
    assert!(!is_good_for_now(&cluster, &held, now).await);
}

/// Uses the capability and the filehandle of each iod, over connections of another session. Returns whether any request
/// succeeded.
async fn is_good_for_now(cluster: &Cluster, held: &Held, session: u64) -> bool {
    let mut good = Vec::new();
    for (index, device) in held.native.devices.iter().enumerate() {
        let connection = connect(&cluster.files(), session, device.0).await;
        let args = ReadArgs { cap: capability(&held.native, index), extents: vec![Extent { offset: 0, len: 1 }] };
        good.push(call::<ReadReply>(&connection, Procedure::Read, &args).await.is_ok());
        let iod = cluster.iods.iter().flatten().find(|iod| iod.iod() == *device).unwrap();
        good.push(held.handles.iter().any(|handle| iod.volume().check_handle(handle).is_ok()));
    }
    good.iter().any(|good| *good)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_end_when_their_export_changes() {
    let mut cluster = cluster().await;
    let file = shared_file(&cluster.files(), "f").await;
    let held = Held::get(&cluster.files(), &user(OTHER, 12), file).await;
    cluster.restart_mgr().await;
    assert!(held.are_good(&cluster, 12).await, "the exports have not changed");
    cluster.config.exports = vec!["/,access=ro".parse().unwrap()];
    cluster.restart_mgr().await;
    assert!(!is_good_for_now(&cluster, &held, 0xffff_u64 << 32 | 12).await);
}

/// A kernel client accepts a layout body of at most one page. Each iod needs its own filehandle. If the filehandles of
/// all iods do not fit into the body, clients use the mgr path for the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_files_layout_has_a_filehandle_for_each_iod_or_is_refused() {
    let cluster = cluster().await;
    let files = cluster.files();
    let file = shared_file(&files, "f").await;
    let body = layout_of(&files, &user(OTHER, 12), file, nfs_files::KIND).await;
    assert_eq!(nfs_files::Body::from_bytes(&body).unwrap().handles.len(), 2);
    let get = async |max_body| files.layout_get(&user(OTHER, 12), ask(file, nfs_files::KIND, max_body)).await.map(drop);
    assert_eq!(get(body.len()).await, Ok(()));
    assert_eq!(get(body.len() - 1).await, Err(Status::NoLayout));
}

/// A capability is valid only at the iod for which the mgr signed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capability_for_one_iod_is_refused_by_another() {
    let cluster = cluster().await;
    let files = cluster.files();
    let file = shared_file(&files, "f").await;
    let held = Held::get(&files, &user(OTHER, 12), file).await;
    for (index, device) in held.native.devices.iter().enumerate() {
        let connection = connect(&files, 12, device.0).await;
        let cap = capability(&held.native, 1 - index);
        let args = ReserveArgs { cap, offset: 0, len: 1 << 30 };
        let refused = call::<Nothing>(&connection, Procedure::Reserve, &args).await.unwrap_err();
        assert_eq!(refused.status, Status::CapRefused);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_cannot_prove_to_be_an_iod_learns_no_secret() {
    let mut cluster = cluster().await;
    let genuine = cluster.iods[0].as_ref().unwrap();
    let (id, at) = (genuine.iod(), genuine.addrs()[0]);
    // The reply that the genuine iod sent to an earlier HELLO, with its proof. An eavesdropper may have recorded it.
    let key = cluster.file.key.of_iod(id);
    let ticket = key.ticket(cluster.file.fsid, MGR_SESSION, u64::MAX);
    let args = HelloArgs::new(&ticket, [8; 32], true);
    let mut answer = false_iod::known_to_all(id, cluster.file.fsid);
    ticket.answer(&args, &mut answer);
    cluster.stop_iod(0);
    crate::cluster::until("the iod is missed", || cluster.up() == 1).await;
    let heard = false_iod::listen(TcpListener::bind(at).unwrap(), answer);
    let hellos = || heard.lock().unwrap().len();
    crate::cluster::until("it was tried", || hellos() >= 3).await;
    assert_eq!(cluster.up(), 1);
    let heard = heard.lock().unwrap().clone();
    for (procedure, body) in heard {
        assert_eq!(procedure, Procedure::Hello as u32, "the false iod received a request");
        // Every field of the HELLO that the mgr sent is public or random.
        let hello = HelloArgs::from_bytes(&body).unwrap();
        assert_eq!((hello.fsid, hello.session), (cluster.file.fsid, MGR_SESSION));
        let secret = key.ticket(hello.fsid, hello.session, hello.expires).to_bytes();
        assert!(!body.windows(32).any(|part| part == &secret[32..]), "the secret of a ticket was sent");
    }
}
