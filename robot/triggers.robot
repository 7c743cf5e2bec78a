*** Settings ***
Documentation       A plan with each trigger by itself: the group is there, and one can go back to it.
Resource            common.resource
Test Template       Trigger Should Make A Group


*** Variables ***
${KID}              - {id: kid, subplan: {steps: [{id: k, on: app, run: "echo kid > kid.txt"}]}}


*** Test Cases ***    TRIGGER    TYPE    GROUPS
Before A Step    before_step    before_step    3
After A Step    after_step    after_step    3
Before A Tool    before_tool_execute    before_tool_execute    2
After A Tool    after_tool_execute    after_tool_execute    2
Before A Tool By Its Other Name    on_tool_write    before_tool_execute    2
After A Tool By Its Other Name    on_tool_write_complete    after_tool_execute    2
At A Decision    on_decision    on_decision    3
When A Child Plan Is Made    on_subplan_spawn    on_subplan_spawn    1
When A Child Plan Was Merged    after_subplan    after_subplan    1
When A Step Fails
    [Template]    NONE
    Make Shop With Triggers    on_error    ${GREET}    ${FAIL}
    Run Agents    plan    run    shop.yaml    rc=${5}
    Groups Should Be    on_error    1
    Rollback To Should Work    on_error
None
    [Template]    NONE
    Make Shop With Triggers    ${EMPTY}    ${GREET}    ${HIRE}    ${KID}
    Run Agents    plan    run    shop.yaml
    ${kinds} =    Query Store
    ...    SELECT group_concat(checkpoint_type, ' ') FROM (SELECT checkpoint_type FROM checkpoint_groups JOIN plans USING (plan_id) WHERE name = 'shop' AND checkpoint_type IN ('before_step', 'after_step', 'before_tool_execute', 'after_tool_execute', 'on_decision', 'on_subplan_spawn'))
    Should Be Equal    ${kinds}[0][0]    ${None}
One That Does Not Exist
    [Template]    NONE
    Make Shop With Triggers    on_decison    ${GREET}
    ${result} =    Run Agents    plan    run    shop.yaml    --json    rc=${2}
    Should Contain    ${result.stdout}    did you mean 'on_decision'?


*** Keywords ***
Make Shop With Triggers
    [Arguments]    ${triggers}    @{steps}
    Make Shop    @{steps}    policy={auto_create_on: [${triggers}]}

Trigger Should Make A Group
    [Arguments]    ${trigger}    ${type}    ${number}
    Make Shop With Triggers    ${trigger}    ${GREET}    ${HIRE}    ${KID}
    Run Agents    plan    run    shop.yaml
    Plan Should Be    shop    execute    complete
    Groups Should Be    ${type}    ${number}
    Rollback To Should Work    ${type}

Groups Should Be
    [Documentation]    A trigger at which nothing changed adds its name to the last group.
    [Arguments]    ${type}    ${number}
    ${found} =    Query Store
    ...    SELECT count(*) FROM checkpoint_groups JOIN plans USING (plan_id) WHERE name = 'shop' AND triggers LIKE '%"' || ? || '"%'
    ...    ${type}
    Should Be Equal As Integers    ${found}[0][0]    ${number}

Rollback To Should Work
    [Arguments]    ${type}
    ${found} =    Query Store
    ...    SELECT group_id FROM checkpoint_groups JOIN plans USING (plan_id) WHERE name = 'shop' AND triggers LIKE '%"' || ? || '"%'
    ...    ${type}
    Run Agents    plan    rollback    shop    ${found}[0][0]    --yes
    Run Agents    check    --read-data
