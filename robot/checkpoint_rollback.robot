*** Settings ***
Documentation       Rollback from other processes: after a run, a failed apply, a crash.
Resource            common.resource


*** Variables ***
# The tool of a killed process does not end by itself: somebody has to end it.
${WAIT}             touch waiting; test -e "$AGENTS_PLAN_DIR/go" || sleep 600


*** Test Cases ***
Rollback Shows Four Panels
    Make Shop    ${GREET}    ${HIRE}
    Run Agents    plan    run    shop.yaml
    ${result} =    Run Agents    plan    rollback    shop    first    --yes
    FOR    ${title}    IN    Rollback Summary    Changes Reverted    Impact    Post-Rollback State
        Should Contain    ${result.stdout}    ${title}
    END

Rollback Tells Programs What It Did
    Make Shop    ${GREET}    ${HIRE}
    ${ran} =    Run Agents    plan    run    shop.yaml    --json
    ${rolled} =    Run Agents    plan    rollback    shop    first    --yes    --json
    ${summary} =    Set Variable    ${rolled.data}[rollback_summary]
    Should Be Equal    ${summary}[plan]    ${ran.data}[plan_id]
    Should Be Equal    ${summary}[checkpoint]    ${ran.data}[checkpoints][0][id]
    Should Be Equal    ${summary}[label]    ${None}
    Should Be Equal As Integers    ${summary}[files_reverted]    2
    ${app} =    Create Dictionary    resource=app    file=greeting.txt    action=restored
    ${db} =    Create Dictionary    resource=db    file=shop.db    action=restored
    Lists Should Be Equal    ${rolled.data}[changes_reverted]    ${{ [$app, $db] }}
    Should Be Equal    ${rolled.data}[impact]
    ...    ${{ {"child_plans_invalidated": 0, "sandbox": 2, "decisions_after_cp": 2, "tool_calls_after_cp": 2} }}
    ${groups} =    Query Store    SELECT count(*) FROM checkpoint_groups
    Should Be Equal    ${rolled.data}[post_rollback_state]
    ...    ${{ {"phase": "execute", "state": "queued", "checkpoints_remaining": $groups[0][0]} }}

Names Instead Of Ids
    [Documentation]    A plan by name, `last`, and the end of its id; a checkpoint by the end of its id.
    Make Shop    ${GREET}
    ${ran} =    Run Agents    plan    run    shop.yaml    --json
    ${end} =    Get Substring    ${ran.data}[plan_id]    -8
    FOR    ${name}    IN    shop    last    ${end}
        ${status} =    Run Agents    plan    status    ${name}    --json
        Should Be Equal    ${status.data}[plan_id]    ${ran.data}[plan_id]
    END
    ${end} =    Get Substring    ${ran.data}[checkpoints][0][id]    -8
    ${rolled} =    Run Agents    plan    rollback    last    ${end}    --yes    --json
    Should Be Equal    ${rolled.data}[rollback_summary][checkpoint]    ${ran.data}[checkpoints][0][id]

Rollback After A Failed Apply
    Make Shop    ${GREET}    ${HIRE}
    Run Agents    plan    run    shop.yaml
    ${sandbox} =    Sandbox Of    shop    app
    # Meanwhile the user edits the same line.
    Write File    app/greeting.txt    hello, dear customer\n
    ${mine} =    Take Snapshot    app
    ${result} =    Run Agents    plan    apply    shop    --yes    --json    rc=${4}
    Should Be Equal    ${result.data}[error][type]    ApplyConflict
    Error Should Have A Hint    ${result}
    Should Be Equal    ${result.data}[conflicts][0][path]    greeting.txt
    Plan Should Be    shop    apply    constrained
    # Neither target was touched, not even the one without a conflict.
    Should Be Unchanged    app    ${mine}
    ${users} =    Users In    shop.db
    Should Be Equal    ${users}    Ada, Grace
    # It can be rolled back, resumed and tried again.
    ${rolled} =    Run Agents    plan    rollback    shop    first    --yes    --json
    Length Should Be    ${rolled.data}[changes_reverted]    2
    Plan Should Be    shop    execute    queued
    ${text} =    Read File    ${sandbox}/greeting.txt
    Should Be Equal    ${text}    hello\n
    Should Be Unchanged    app    ${mine}
    Run Agents    plan    resume    shop
    Plan Should Be    shop    execute    complete
    Run Agents    plan    apply    shop    --yes    rc=${4}
    # The user settles it.
    Run Git    app    checkout    -q    greeting.txt
    ${first} =    Run Agents    plan    apply    shop    --yes    --json
    Plan Should Be    shop    apply    applied
    ${text} =    Read File    app/greeting.txt
    Should Be Equal    ${text}    goodbye\n
    ${users} =    Users In    shop.db
    Should Be Equal    ${users}    Ada, Grace, Mary
    ${count} =    Run Git    app    rev-list    --count    HEAD
    Should Be Equal    ${count}    2
    # Exactly once: the second time gives the first result and does nothing.
    ${mine} =    Take Snapshot    app
    ${second} =    Run Agents    plan    apply    shop    --yes    --json
    Should Be Equal    ${second.data}    ${first.data}
    Should Be Unchanged    app    ${mine}
    ${refused} =    Run Agents    plan    rollback    shop    first    --yes    --json    rc=${4}
    Should Be Equal    ${refused.data}[error][type]    PlanApplied

A Validation That Fails Leaves The Targets Alone
    Make Shop    ${GREET}    more=validate: [{on: app, run: "rm greeting.txt; false"}]
    Run Agents    plan    run    shop.yaml
    ${mine} =    Take Snapshot    app
    ${result} =    Run Agents    plan    apply    shop    --yes    --json    rc=${4}
    Should Be Equal    ${result.data}[error][type]    ValidationFailed
    Plan Should Be    shop    apply    constrained
    Should Be Unchanged    app    ${mine}
    ${sandbox} =    Sandbox Of    shop    app
    ${text} =    Read File    ${sandbox}/greeting.txt
    Should Be Equal    ${text}    goodbye\n    what the validation did to the sandbox stayed there
    Run Agents    plan    rollback    shop    first    --yes
    Plan Should Be    shop    execute    queued

A Plan Whose Process Was Killed Is Resumed
    Make Shop
    ...    - {id: once, on: app, run: "echo once >> once.txt"}
    ...    - {id: wait, on: app, run: 'echo half >> half.txt; ${WAIT}; echo done > done.txt'}
    ...    ${HIRE}
    Start Plan And Wait
    Kill The Running Plan
    ${status} =    Run Agents    plan    status    shop    --json
    Should Be Equal    ${status.data}[state]    errored
    Should Contain    ${status.data}[error][hint]    agents plan resume
    VAR    ${sandbox}    ${status.data}[sandboxes][app]
    ${half} =    Read File    ${sandbox}/half.txt
    Should Be Equal    ${half}    half\n
    Write File    go    now\n
    ${resumed} =    Run Agents    plan    resume    shop    --json
    Should Be Equal    ${resumed.data}[resumed_from]    ${status.data}[last_checkpoint_id]
    ${attempts} =    Evaluate    [(step["state"], step["attempts"]) for step in $resumed.data["steps"]]
    Should Be Equal    ${attempts}    ${{ [("complete", 1), ("complete", 2), ("complete", 1)] }}
    # What was finished did not run again, and what was half done was taken back first.
    ${once} =    Read File    ${sandbox}/once.txt
    Should Be Equal    ${once}    once\n
    ${half} =    Read File    ${sandbox}/half.txt
    Should Be Equal    ${half}    half\n
    Nothing Should Be Left Over    ${status.data}[plan_id]

A Plan Whose Process Was Killed Is Rolled Back
    Make Shop
    ...    - {id: once, on: app, run: "echo once >> once.txt"}
    ...    - {id: wait, on: app, run: 'echo half >> half.txt; rm greeting.txt; ${WAIT}'}
    Start Plan And Wait
    Kill The Running Plan
    ${rolled} =    Run Agents    plan    rollback    shop    first    --yes    --json
    ${reverted} =    Evaluate    {c["file"]: c["action"] for c in $rolled.data["changes_reverted"]}
    Should Be Equal    ${reverted}
    ...    ${{ dict.fromkeys(["half.txt", "once.txt", "waiting"], "removed") | {"greeting.txt": "recreated"} }}
    Plan Should Be    shop    execute    queued
    ${sandbox} =    Sandbox Of    shop    app
    ${text} =    Read File    ${sandbox}/greeting.txt
    Should Be Equal    ${text}    hello\n
    File Should Not Exist    ${sandbox}/half.txt
    Write File    go    now\n
    Run Agents    plan    resume    shop
    Nothing Should Be Left Over    ${rolled.data}[rollback_summary][plan]


*** Keywords ***
Nothing Should Be Left Over
    [Documentation]    No process, no intent, no staging directory; the plan is complete, the store whole.
    [Arguments]    ${plan}
    Plan Should Be    ${plan}    execute    complete
    ${left} =    Processes Of Plan    ${plan}
    Should Be Empty    ${left}
    ${intents} =    Query Store    SELECT * FROM intents
    Should Be Empty    ${intents}
    ${sandbox} =    Sandbox Of    ${plan}    app
    ${around} =    Take Snapshot    ${sandbox}/..
    ${staging} =    Evaluate    [path for path in $around if path.startswith(b".staging-")]
    Should Be Empty    ${staging}
    Run Agents    check    --read-data
