//! Tests of one iod daemon that serves volumes of two file systems: clients of one file system cannot reach objects of
//! the other.

use iod::{Config, Features, Iod, Local, StartError, Store, StoreConfig};
use types::{FileId, Fsid, Generation, IodId, ObjectId, Status};
use wire::native::{
    Capability, DataHandle, Extent, HelloArgs, HelloReply, Holder, IodKey, Key, Nothing, ObjectArgs, Origin, Procedure,
    ProveArgs, ProveReply, ReadArgs, ReadReply, Rights, StatsReply, Striping, WriteArgs, WriteExtent, WriteHead,
    WriteReply, crc32c,
};
use xdr::Segments;

use crate::cluster::{ALL, Client, FSID, Fault, IOD, SESSION, Server, cluster_key, config, flat, now};

/// The id of the second file system. It begins like the id of the first file system, so the filehandles of both file
/// systems contain the same volume tag (a short number of the file system).
const OTHER: Fsid = Fsid(*b"file other store");
const OTHER_IOD: IodId = IodId([6; 16]);
const FILE: u64 = 7;
const ORIGIN: Origin = Origin { owner: [1; 16], incarnation: 0 };

fn other_key() -> Key {
    Key::new([4; 32])
}

/// Formats a store of the second file system beside that of `config`, and adds the store to `config`.
fn with_other(config: &mut Config) {
    let dir = config.dir.with_file_name("other");
    Store::format_as(&Local::new(&dir), OTHER, Features::default(), OTHER_IOD).unwrap();
    config.more.push(StoreConfig { dir, fsid: OTHER, key: other_key() });
}

/// A client of one volume, with the secret that signs its capabilities.
struct User {
    client: Client,
    fsid: Fsid,
    key: IodKey,
}

impl User {
    fn new(server: &Server, fsid: Fsid, key: IodKey) -> User {
        let mut client = Client::new(server.tcp());
        client.checksums = true;
        User { client, fsid, key }
    }

    fn hello(&mut self) -> Result<HelloReply, Fault> {
        let ticket = self.key.ticket(self.fsid, SESSION, now() + 1000);
        self.client.hello_with(&ticket, ORIGIN, true)
    }

    fn cap(&self, rights: Rights) -> Capability {
        let object = ObjectId::stream_0(FileId(FILE));
        self.key.sign_capability(self.fsid, object, Generation(1), rights, now() + 1000, SESSION)
    }

    fn write(&mut self, cap: Capability, data: &'static [u8]) -> Result<WriteReply, Fault> {
        let extents = vec![WriteExtent { offset: 0, len: data.len() as u32, crc32c: crc32c(data) }];
        let head = WriteHead { cap, stable: true, least: 0, extents };
        let data = Segments::from(bytes::Bytes::from_static(data));
        self.client.call(Procedure::Write, &WriteArgs { head, data })
    }

    fn read(&mut self, cap: Capability) -> Result<Vec<u8>, Fault> {
        let args = ReadArgs { cap, extents: vec![Extent { offset: 0, len: 100 }] };
        self.client.call::<ReadReply>(Procedure::Read, &args).map(|reply| flat(&reply))
    }

    fn handle(&self) -> DataHandle {
        let striping = Striping { unit: 4096, count: 1, index: 0 };
        let holder = Holder { grant: 1, session: SESSION, expires: now() + 1000 };
        let object = (ObjectId::stream_0(FileId(FILE)), Generation(1));
        DataHandle::sign(&self.key, self.fsid, object, Rights::READ, striping, holder)
    }

    fn counter(&mut self, name: &str) -> u64 {
        let stats: StatsReply = self.client.call(Procedure::Stats, &Nothing).unwrap();
        stats.counters.iter().find(|counter| counter.name == name).unwrap().value
    }
}

fn users(server: &Server) -> [User; 2] {
    let keys = [cluster_key().of_iod(IOD), other_key().of_iod(OTHER_IOD)];
    let [one, two] = keys;
    [User::new(server, FSID, one), User::new(server, OTHER, two)]
}

#[test]
fn the_same_file_id_of_two_file_systems_is_two_objects() {
    let server = Server::with(with_other);
    let mut users = users(&server);
    let texts: [&'static [u8]; 2] = [b"of the first", b"of the other one"];
    for ((user, text), iod) in users.iter_mut().zip(texts).zip([IOD, OTHER_IOD]) {
        let reply = user.hello().unwrap();
        assert_eq!((reply.iod, reply.fsid), (iod, user.fsid));
        let cap = user.cap(ALL);
        assert_eq!(user.write(cap, text).unwrap().size, text.len() as u64);
    }
    for (user, text) in users.iter_mut().zip(texts) {
        assert_eq!(user.read(user.cap(Rights::READ)).unwrap(), text);
    }
    let [one, two] = &mut users;
    // Each volume counts its own requests. The counters of connections are shared: both volumes report all connections
    // of the daemon.
    assert_eq!([one.counter("bytes.written"), two.counter("bytes.written")], [12, 16]);
    assert_eq!([one.counter("requests.write"), two.counter("requests.write")], [1, 1]);
    assert_eq!([one.counter("connections.open"), two.counter("connections.open")], [2, 2]);
    one.client.call::<Nothing>(Procedure::Remove, &ObjectArgs { cap: one.cap(ALL) }).unwrap();
    assert_eq!((one.read(one.cap(ALL)).unwrap(), two.read(two.cap(ALL)).unwrap()), (Vec::new(), texts[1].to_vec()));
}

#[test]
fn capabilities_and_tickets_of_one_volume_are_refused_by_the_other() {
    let server = Server::with(with_other);
    let mut users = users(&server);
    for user in &mut users {
        user.hello().unwrap();
        let cap = user.cap(ALL);
        user.write(cap, b"secret").unwrap();
    }
    let caps = [users[0].cap(ALL), users[1].cap(ALL)];
    for (user, cap) in users.iter_mut().zip([&caps[1], &caps[0]]) {
        let fsid = user.fsid;
        assert_eq!(user.read(cap.clone()).unwrap_err().status(), Status::CapRefused);
        let renamed = Capability { fsid, ..cap.clone() };
        assert_eq!(user.read(renamed).unwrap_err().status(), Status::CapRefused);
    }
    // The iod refuses a ticket for one file system if it is signed with the iod secret of the other file system. It
    // also refuses a ticket for a file system that no volume serves.
    let [one, two] = [cluster_key().of_iod(IOD), other_key().of_iod(OTHER_IOD)];
    for (fsid, key) in [(OTHER, one.clone()), (FSID, two.clone())] {
        let mut stranger = Client::new(server.tcp());
        let ticket = key.ticket(fsid, SESSION, now() + 1000);
        let hello = HelloArgs::new(&ticket, [8; 32], true);
        let reply: HelloReply = stranger.call(Procedure::Hello, &hello).unwrap();
        assert_eq!((reply.fsid, ticket.check(&hello, &reply, ORIGIN).map(drop)), (fsid, Err(Status::CapRefused)));
        let prove = ProveArgs { origin: ORIGIN, proof: reply.proof };
        assert_eq!(stranger.call::<ProveReply>(Procedure::Prove, &prove).unwrap_err().status(), Status::CapRefused);
    }
    let mut stranger = User::new(&server, Fsid([9; 16]), one);
    assert_eq!(stranger.hello().unwrap_err().status(), Status::CapRefused);
    // The filehandles of both file systems contain the same volume tag, so only the MAC shows which volume a filehandle
    // belongs to.
    let daemon = server.running().daemon();
    for user in &users {
        let handle = user.handle();
        assert_eq!(daemon.check_handle(&handle).map(|volume| volume.store().fsid()).ok(), Some(user.fsid));
        let own = |fsid| daemon.volume(fsid).unwrap().check_handle(&handle);
        assert_eq!([FSID, OTHER].map(|fsid| own(fsid).is_ok()), [FSID, OTHER].map(|fsid| fsid == user.fsid));
        let elsewhere = DataHandle { volume: 1, ..handle };
        assert_eq!(daemon.check_handle(&elsewhere).map(drop), Err(Status::BadHandle));
    }
}

#[test]
fn two_stores_of_one_file_system_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let stores = ["a", "b"].map(|name| dir.path().join(name));
    for (store, iod) in stores.iter().zip([IOD, OTHER_IOD]) {
        Store::format_as(&Local::new(store), FSID, Features::default(), iod).unwrap();
    }
    let [first, second] = stores;
    let more = vec![StoreConfig { dir: second, fsid: FSID, key: cluster_key() }];
    match Iod::start(Config { more, ..config(&first) }) {
        Err(error @ StartError::SameFileSystem { .. }) => assert!(error.to_string().contains("same file system")),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it started"),
    }
}
