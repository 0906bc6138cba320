//! Tests of WRITE_REPORTS and LENGTHS, with which an iod reports NFS writes to the mgr and asks the mgr for file
//! lengths.
//!
//! The iod reports an NFS write to the mgr before it replies to the NFS client.

use std::thread;

use types::{FileId, Generation, ObjectId, Status};
use wire::native::*;

use crate::cluster::{ALL, Client, FSID, Server, cap, key, now};

const OBJECT: ObjectId = ObjectId::stream_0(FileId(7));

/// Returns a client that has opened a session as the mgr.
fn mgr(server: &Server) -> Client {
    let mut client = Client::new(server.tcp());
    let ticket = key().ticket(FSID, MGR_SESSION, now() + 1000);
    client.hello_with(&ticket, Origin { owner: [3; 16], incarnation: 0 }, false).unwrap();
    client
}

fn of_mgr(object: ObjectId) -> Capability {
    key().sign_capability(FSID, object, Generation(1), ALL, now() + 1000, MGR_SESSION)
}

fn write_reports(mgr: &mut Client, known: u64) -> WriteReportsReply {
    mgr.call(Procedure::WriteReports, &WriteReportsArgs { cap: of_mgr(STORE_OBJECT), known }).unwrap()
}

fn changed(client: &mut Client, cap: Capability) -> bool {
    client.call::<SizeReply>(Procedure::Size, &ObjectArgs { cap }).unwrap().changed
}

#[test]
fn an_nfs_write_waits_until_the_mgr_has_received_the_write_report() {
    let mut server = Server::new();
    let served = server.running().volume().clone();
    let mut mgr = mgr(&server);
    let mut client = server.client();
    let write = |data: &[u8]| served.write_object(OBJECT, Generation(1), 0, data, true).unwrap();
    let size = write(b"hello");
    thread::scope(|scope| {
        let writer = scope.spawn(|| served.tell_written(OBJECT, 1, size));
        let told = write_reports(&mut mgr, 0);
        assert_eq!(told.written, [OBJECT]);
        assert!(!writer.is_finished());
        let (mgr, served) = (&mut mgr, &served);
        let next = scope.spawn(move || write_reports(mgr, told.number));
        assert!(writer.join().unwrap());
        // The iod has reported the first write under this layout to the mgr. It does not report a later write under
        // this layout that does not extend the object, and only sets a flag that the object has changed. SIZE returns
        // this flag to the mgr, but not to other clients.
        write(b"world");
        assert!(served.tell_written(OBJECT, 1, size));
        assert!(!changed(&mut client, cap(OBJECT.file.0, ALL)));
        let longer = write(b"hello world");
        let writer = scope.spawn(move || served.tell_written(OBJECT, 1, longer));
        assert_eq!(next.join().unwrap().written, [OBJECT]);
        // When the iod stops, a writer no longer waits for the mgr to confirm its report.
        drop(server.running.take());
        assert!(!writer.join().unwrap());
    });
}

#[test]
fn only_the_mgr_receives_write_reports() {
    let server = Server::new();
    let (mut mgr, mut client) = (mgr(&server), server.client());
    let args = |cap| WriteReportsArgs { cap, known: 0 };
    let refused =
        client.call::<WriteReportsReply>(Procedure::WriteReports, &args(cap(OBJECT.file.0, ALL))).unwrap_err();
    assert_eq!(refused.status(), Status::CapRefused);
    let read = key().sign_capability(FSID, STORE_OBJECT, Generation(1), Rights::READ, now() + 1000, MGR_SESSION);
    assert_eq!(
        mgr.call::<WriteReportsReply>(Procedure::WriteReports, &args(read)).unwrap_err().status(),
        Status::CapRefused
    );
    assert!(!changed(&mut mgr, of_mgr(OBJECT)));
}

#[test]
fn only_the_mgr_receives_and_answers_questions_about_file_sizes() {
    let mut server = Server::new();
    let served = server.running().volume().clone();
    let (mut mgr, mut client) = (mgr(&server), server.client());
    let args = |cap, answers| LengthsArgs { cap, answers };
    let refused =
        client.call::<LengthsReply>(Procedure::Lengths, &args(cap(STORE_OBJECT.file.0, Rights::READ), vec![]));
    assert_eq!(refused.unwrap_err().status(), Status::CapRefused);
    let refused = mgr.call::<LengthsReply>(Procedure::Lengths, &args(of_mgr(OBJECT), vec![]));
    assert_eq!(refused.unwrap_err().status(), Status::CapRefused);
    // The mgr has not called LENGTHS yet, so a reader that asks for a file length gets no length and does not wait.
    assert_eq!(served.file_length(OBJECT), None);
    let mut lengths = move |answers| mgr.call::<LengthsReply>(Procedure::Lengths, &args(of_mgr(STORE_OBJECT), answers));
    thread::scope(|scope| {
        let next = scope.spawn(move || (lengths(vec![]), lengths));
        // The iod may receive the question of a reader before the mgr's first LENGTHS call. So the reader repeats the
        // question until the iod returns an answer.
        let length = || std::iter::repeat_with(|| served.file_length(OBJECT)).find_map(|length| length).unwrap();
        let asking = scope.spawn(length);
        let (asked, mut lengths) = next.join().unwrap();
        let [LengthQuestion { number, object: OBJECT }] = asked.unwrap().asked[..] else { panic!("one question") };
        let next =
            scope.spawn(move || lengths(vec![Length { number, length: Some(FileLength { file: 55, least: 7 }) }]));
        assert_eq!(asking.join().unwrap(), FileLength { file: 55, least: 7 });
        // When the iod stops, neither the mgr's LENGTHS call nor a reader waits any longer.
        drop(server.running.take());
        let _ = next.join().unwrap();
        assert_eq!(served.file_length(OBJECT), None);
    });
}
