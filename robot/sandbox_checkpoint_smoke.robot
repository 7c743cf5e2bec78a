*** Settings ***
Documentation       Plans run in sandboxes and are checkpointed; each command is a process of its own.
Resource            common.resource


*** Variables ***
@{ENVELOPE}         command    data    exit_code    messages    status    timing


*** Test Cases ***
Status Names The Last Checkpoint And Rollback Works Against It
    Make Shop    ${GREET}    ${HIRE}
    ${ran} =    Run Agents    plan    run    shop.yaml    --json
    ${status} =    Run Agents    plan    status    shop    --json
    ${last} =    Set Variable    ${status.data}[last_checkpoint_id]
    Should Be Equal    ${last}    ${ran.data}[last_checkpoint_id]
    Should Match Regexp    ${last}    ^[0-9A-Z]{26}$
    ${known} =    Query Store    SELECT plan_id FROM checkpoints WHERE checkpoint_id = ?    ${last}
    Should Be Equal    ${known}[0][0]    ${status.data}[plan_id]
    ${sandbox} =    Sandbox Of    shop    app
    Write File    ${sandbox}/mine.txt    an edit by hand\n
    ${rolled} =    Run Agents    plan    rollback    shop    ${last}    --yes    --json
    Should Be Equal    ${rolled.data}[rollback_summary][checkpoint]    ${last}
    Length Should Be    ${rolled.data}[changes_reverted]    1
    File Should Not Exist    ${sandbox}/mine.txt
    ${text} =    Read File    ${sandbox}/greeting.txt
    Should Be Equal    ${text}    goodbye\n
    ${status} =    Run Agents    plan    status    shop    --json
    Should Be Equal    ${status.data}[last_checkpoint_id]    ${last}

Status Has A Last Checkpoint Before There Is One
    [Documentation]    Always present, so that programs need not ask whether it is there.
    Make Shop    ${GREET}
    Run Agents    plan    use    shop.yaml    --json
    ${status} =    Run Agents    plan    status    shop    --json
    Dictionary Should Contain Item    ${status.data}    last_checkpoint_id    ${None}

Status Has What Programs Rely On
    Make Shop    ${GREET}    ${HIRE}
    Run Agents    plan    run    shop.yaml
    ${status} =    Run Agents    plan    status    shop    --json
    FOR    ${key}    IN    plan_id    name    phase    state    attempt    progress    checkpoints    execution
        Dictionary Should Contain Key    ${status.data}    ${key}
    END
    Dictionary Should Not Contain Key    ${status.data}    error
    Should Be Equal    ${status.data}[progress][0][step]    greet
    Should Be Equal    ${status.data}[progress][0][status]    complete
    ${keys} =    Get Dictionary Keys    ${status.data}[checkpoints][0]
    Lists Should Be Equal    ${keys}
    ...    ${{ sorted("id group type step_index label created_at state_hash".split()) }}
    Should Be Equal As Integers    ${status.data}[execution][tool_calls]    2
    Should Be Equal As Integers    ${status.data}[execution][files_modified]    2
    Should Be Equal As Integers    ${status.data}[execution][child_plans]    0
    ${groups} =    Query Store    SELECT count(*) FROM checkpoint_groups
    Should Be Equal As Integers    ${status.data}[execution][checkpoints]    ${groups}[0][0]

The Envelope Is The Same For Every Command
    Make Shop    ${GREET}    ${FAIL}
    Envelope Should Be Right    5    plan run    shop.yaml
    Envelope Should Be Right    0    plan status    shop
    Envelope Should Be Right    0    plan list
    Envelope Should Be Right    0    plan tree    shop
    Envelope Should Be Right    0    plan checkpoints    shop
    Envelope Should Be Right    0    plan diff    shop
    Envelope Should Be Right    0    plan log    shop
    Envelope Should Be Right    0    plan rollback    shop    first    --yes
    Envelope Should Be Right    0    plan undo    shop
    Envelope Should Be Right    3    plan status    no-such-plan
    Envelope Should Be Right    0    check    --read-data

Exit Codes Tell What Happened
    Make Shop    ${GREET}    ${FAIL}
    Run Agents    plan    run    shop.yaml    rc=${5}
    Run Agents    plan    status    shop    rc=${0}
    Run Agents    plan    no-such-command    rc=${2}
    Run Agents    plan    run    no-such-file.yaml    rc=${2}
    Run Agents    plan    rollback    shop    no-such-checkpoint    --yes    rc=${3}
    Run Agents    plan    apply    shop    --yes    rc=${4}
    Damage Store
    ${broken} =    Run Agents    plan    status    shop    --json    rc=${6}
    Error Should Have A Hint    ${broken}

A Failed Plan Says Why And What To Type
    Make Shop    ${GREET}    ${FAIL}
    ${ran} =    Run Agents    plan    run    shop.yaml    --json    rc=${5}
    Error Should Have A Hint    ${ran}
    Should Be Equal    ${ran.data}[steps][1][state]    errored
    Should Contain    ${ran.data}[error][hint]    agents plan resume
    ${status} =    Run Agents    plan    status    shop    --json
    Should Be Equal    ${status.data}[error]    ${ran.data}[error]

Git Works In The Sandbox And Is Rolled Back With It
    Make Shop
    ...    - id: work
    ...    ${SPACE}${SPACE}on: app
    ...    ${SPACE}${SPACE}run: |
    ...    ${SPACE}${SPACE}${SPACE}${SPACE}echo new > new.txt && git add new.txt && git commit -q -m work
    ...    ${SPACE}${SPACE}${SPACE}${SPACE}git checkout -q -b topic && echo shelved >> greeting.txt && git stash -q
    ...    ${SPACE}${SPACE}${SPACE}${SPACE}echo staged > staged.txt && git add staged.txt && git tag v1
    Run Git    app    config    user.name    Tester
    Run Git    app    config    user.email    tester@example.invalid
    ${mine} =    Take Snapshot    app
    Run Agents    plan    run    shop.yaml
    ${sandbox} =    Sandbox Of    shop    app
    Git In Sandbox Should Say    ${sandbox}    work\nstart    topic    1    A\ \ staged.txt
    Should Be Unchanged    app    ${mine}
    ${rolled} =    Run Agents    plan    rollback    shop    first    --yes    --json
    Git In Sandbox Should Say    ${sandbox}    start    ${EMPTY}    0    ${EMPTY}
    Run Git    ${sandbox}    fsck    --strict
    ${files} =    Evaluate    {item["file"] for item in $rolled.data["changes_reverted"]}
    Should Contain    ${files}    new.txt
    Should Contain    ${files}    .git/refs/heads/topic
    Should Contain    ${files}    .git/refs/stash
    Should Be Unchanged    app    ${mine}
    Run Agents    plan    undo    shop
    Git In Sandbox Should Say    ${sandbox}    work\nstart    topic    1    A\ \ staged.txt

A Database Inside The Repository Is Checkpointed Once
    Write File    app/greeting.txt    hello\n
    Write File    app/.gitignore    *.db\n
    Commit All    app
    Write File    app/data/README    the database\n
    Run SQL    app/data/app.db    CREATE TABLE users (name TEXT)
    Run SQL    app/data/app.db    INSERT INTO users VALUES ('Ada')
    ${plan} =    Catenate    SEPARATOR=\n
    ...    name: nested
    ...    resources:
    ...    ${SPACE}${SPACE}app: {kind: git-checkout, path: .}
    ...    ${SPACE}${SPACE}db: {kind: sqlite, path: data/app.db}
    ...    steps: [{id: both, on: app, run: python3 both.py}]
    Write File    app/plan.yaml    ${plan}\n
    ${tool} =    Catenate    SEPARATOR=\n
    ...    import sqlite3
    ...    with sqlite3.connect("data/app.db") as db: db.execute("INSERT INTO users VALUES ('Mary')")
    ...    open("greeting.txt", "w").write("goodbye")
    Write File    app/both.py    ${tool}\n
    ${mine} =    Take Snapshot    app
    ${ran} =    Run Agents    plan    run    app/plan.yaml    --json
    VAR    ${home}    ${ran.data}[sandboxes][app]/..
    # One copy: in the outer sandbox there is a link to it.
    ${copies} =    Regular Files Named    app.db    ${home}
    Length Should Be    ${copies}    1
    ${link} =    Link Target    ${ran.data}[sandboxes][app]/data/app.db
    Should Be Equal    ${link}    ${ran.data}[sandboxes][db]
    ${users} =    Users In    ${ran.data}[sandboxes][db]
    Should Be Equal    ${users}    Ada, Mary
    # One group over both.
    ${rows} =    Query Store
    ...    SELECT group_id, count(*) FROM checkpoints WHERE checkpoint_type = 'after_tool_execute' GROUP BY group_id
    Should Be Equal As Strings    ${rows}    [('${rows}[0][0]', 2)]
    # One rollback.
    ${rolled} =    Run Agents    plan    rollback    nested    first    --yes    --json
    ${reverted} =    Evaluate    sorted((c["resource"], c["file"]) for c in $rolled.data["changes_reverted"])
    Should Be Equal    ${reverted}    ${{ [("app", "greeting.txt"), ("db", "app.db")] }}
    ${users} =    Users In    ${ran.data}[sandboxes][db]
    Should Be Equal    ${users}    Ada
    ${again} =    Link Target    ${ran.data}[sandboxes][app]/data/app.db
    Should Be Equal    ${again}    ${link}
    Should Be Unchanged    app    ${mine}
    # And it is applied where it was, as a database.
    Run Agents    plan    resume    nested
    Run Agents    plan    apply    nested    --yes
    ${users} =    Users In    app/data/app.db
    Should Be Equal    ${users}    Ada, Mary
    ${copies} =    Regular Files Named    app.db    app
    Length Should Be    ${copies}    1


*** Keywords ***
Envelope Should Be Right
    [Arguments]    ${rc}    ${command}    @{arguments}
    @{words} =    Split String    ${command}
    ${result} =    Run Agents    @{words}    @{arguments}    --json    rc=${rc}
    ${keys} =    Get Dictionary Keys    ${result.json}
    Lists Should Be Equal    ${keys}    ${ENVELOPE}
    Should Be Equal    ${result.json}[command]    agents ${command}
    Should Be Equal As Integers    ${result.json}[exit_code]    ${rc}
    Should Be Equal    ${result.json}[status]    ${{ "error" if int($rc) else "ok" }}
    ${keys} =    Get Dictionary Keys    ${result.json}[timing]
    Lists Should Be Equal    ${keys}    ${{ ["duration_ms", "started"] }}
    IF    ${rc}    Error Should Have A Hint    ${result}

Git In Sandbox Should Say
    [Arguments]    ${sandbox}    ${log}    ${branch}    ${stashes}    ${status}
    ${found} =    Run Git    ${sandbox}    log    --format=%s
    Should Be Equal    ${found}    ${log}
    ${found} =    Run Git    ${sandbox}    branch    --show-current
    Should Be Equal    ${found}    ${branch}
    ${found} =    Run Git    ${sandbox}    stash    list
    Length Should Be    ${found.splitlines()}    ${stashes}
    ${found} =    Run Git    ${sandbox}    status    --porcelain
    Should Be Equal    ${found}    ${status}
